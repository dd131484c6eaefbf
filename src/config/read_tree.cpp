#include "config/read_tree.h"

#include <algorithm>
#include <set>
#include <vector>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/syntax.h"

namespace unsloth::config {
namespace {

// No option takes so much; what is shown in messages is written by a function that recurses.
constexpr int deepest = 64;

// The library keeps the last of two equal keys without a word.
Json::parser_callback_t refuse_oddities(const std::string& file) {
    return [file, seen = std::vector<std::set<std::string>>()](int depth, Json::parse_event_t event,
                                                               Json& parsed) mutable {
        if (depth > deepest)
            throw Error("config.syntax", cat(file, ": lists and objects nest deeper than ", deepest, " levels"));
        if (event == Json::parse_event_t::object_start) seen.emplace_back();
        if (event == Json::parse_event_t::object_end) seen.pop_back();
        if (event == Json::parse_event_t::key && !seen.back().insert(parsed.get<std::string>()).second)
            throw Error("config.syntax", cat(file, ": the key ", parsed.dump(), " stands twice in one object"));
        return true;
    };
}

Json parse_json(const std::string& content, const std::string& file) {
    try {
        return Json::parse(content, refuse_oddities(file), /*allow_exceptions=*/true,
                           /*ignore_comments=*/true);
    } catch (const nlohmann::json::exception&) {
        const SyntaxMistake mistake = find_json_mistake(content, /*comments=*/true);
        throw malformed(file, content, mistake.at, cat("no valid JSON: ", mistake.words));
    }
}

}  // namespace

Error malformed(const std::string& file, const std::string& content, std::size_t at, const std::string& what) {
    at = std::min(at, content.find_last_not_of(" \t\r\n") + 1);  // of a text that ends too early its last line
    const TextPlace place = place_of(content, at);
    return Error("config.syntax", cat(file, ":", place.line, ":", place.column, ": ", what), marked_line(content, at));
}

bool is_yaml(const std::filesystem::path& path) {
    return path.extension() == ".yaml" || path.extension() == ".yml";
}

Json read_tree(const std::filesystem::path& path) {
    std::string content;
    try {
        content = read_file(path);
    } catch (const Error& failure) {
        throw Error("config.cannot-read", cat("configuration: ", failure.what()));
    }
    return is_yaml(path) ? parse_yaml(content, path.string()) : parse_json(content, path.string());
}

}  // namespace unsloth::config
