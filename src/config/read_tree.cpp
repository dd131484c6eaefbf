#include "unsloth/config/read_tree.h"

#include <algorithm>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/json.h"
#include "unsloth/core/syntax.h"

namespace unsloth::config {
namespace {

Json read_commented_json(const std::string& content, const std::string& file) {
    const JsonRules rules{.comments = true};
    try {
        return read_json<Json>(content, rules);
    } catch (const JsonRefusal& refusal) {
        if (refusal.cause == JsonRefusal::Cause::depth)
            throw Error("config.syntax", cat(file, ": lists and objects nest deeper than ", rules.deepest, " levels"));
        if (refusal.cause == JsonRefusal::Cause::repeated_key)
            throw malformed(file, content, find_json_error(content, /*comments=*/true, /*unique_keys=*/true).at,
                            cat("the key ", Json(refusal.key).dump(), " appears twice in one object"));
        if (refusal.cause != JsonRefusal::Cause::syntax) throw Error("config.syntax", cat(file, ": ", refusal.words));
        const SyntaxError error = find_json_error(content, /*comments=*/true);
        throw malformed(file, content, error.at, cat("no valid JSON: ", error.words));
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
    if (content.starts_with("\xFF\xFE") || content.starts_with("\xFE\xFF"))
        throw Error("config.syntax", cat(path.string(), ": is UTF-16 text; a configuration is UTF-8"),
                    cat("iconv -f UTF-16 -t UTF-8 ", path.string(), " > run.json makes one of it."));
    return is_yaml(path) ? parse_yaml(content, path.string()) : read_commented_json(content, path.string());
}

}  // namespace unsloth::config
