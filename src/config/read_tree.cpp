#include "config/read_tree.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <vector>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"

namespace unsloth::config {
namespace {

// ":line:column" of a character, all counted from 1.
std::string position_text(const std::string& content, std::size_t character) {
    const std::size_t index = std::min(character > 0 ? character - 1 : 0, content.size());
    const std::string_view before = std::string_view(content).substr(0, index);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const auto line_start = before.rfind('\n') + 1;  // npos + 1 is 0
    return cat(":", line, ":", index - line_start + 1);
}

// The library's text without its own prefix and position.
std::string reason_of(const nlohmann::json::exception& failure) {
    const std::string text = failure.what();
    if (const auto column = text.find("column "); column != std::string::npos)
        if (const auto colon = text.find(": ", column); colon != std::string::npos) return text.substr(colon + 2);
    const auto bracket = text.find("] ");
    return bracket == std::string::npos ? text : text.substr(bracket + 2);
}

// No option takes so much; what is shown in messages is written by a function that recurses.
constexpr int deepest = 64;

// The library keeps the last of two equal keys without a word.
Json::parser_callback_t refuse_oddities(const std::string& file) {
    return [file, seen = std::vector<std::set<std::string>>()](int depth, Json::parse_event_t event,
                                                               Json& parsed) mutable {
        if (depth > deepest) throw usage_error(cat(file, ": lists and objects nest deeper than ", deepest, " levels"));
        if (event == Json::parse_event_t::object_start) seen.emplace_back();
        if (event == Json::parse_event_t::object_end) seen.pop_back();
        if (event == Json::parse_event_t::key && !seen.back().insert(parsed.get<std::string>()).second)
            throw usage_error(cat(file, ": the key ", parsed.dump(), " stands twice in one object"));
        return true;
    };
}

Json parse_json(const std::string& content, const std::string& file) {
    try {
        return Json::parse(content, refuse_oddities(file), /*allow_exceptions=*/true,
                           /*ignore_comments=*/true);
    } catch (const nlohmann::json::parse_error& failure) {
        throw usage_error(cat(file, position_text(content, failure.byte), ": no valid JSON: ", reason_of(failure)));
    } catch (const nlohmann::json::exception& failure) {  // a number that no double holds
        throw usage_error(cat(file, ": no valid JSON: ", reason_of(failure)));
    }
}

}  // namespace

bool is_yaml(const std::filesystem::path& path) {
    return path.extension() == ".yaml" || path.extension() == ".yml";
}

Json read_tree(const std::filesystem::path& path) {
    std::string content;
    try {
        content = read_file(path);
    } catch (const Error& failure) {
        throw usage_error(cat("configuration: ", failure.what()));
    }
    return is_yaml(path) ? parse_yaml(content, path.string()) : parse_json(content, path.string());
}

}  // namespace unsloth::config
