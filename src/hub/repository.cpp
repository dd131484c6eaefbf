#include <algorithm>

#include "unsloth/hub/hub.h"

namespace unsloth::hub {
namespace {

constexpr std::string_view scheme = "hf://";

bool is_word(std::string_view text, std::string_view also) {
    return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
               also.find(c) != std::string_view::npos;
    });
}

/// "org/name" of what the hub allows; `--` parts the names of the cache's folders.
bool is_id(std::string_view text) {
    const std::size_t slash = text.find('/');
    if (slash == std::string_view::npos) return false;
    const std::string_view owner = text.substr(0, slash), name = text.substr(slash + 1);
    return is_word(owner, "-.") && is_word(name, "-.") && owner.front() != '.' && name.front() != '.' &&
           text.find("--") == std::string_view::npos && text.find("..") == std::string_view::npos;
}

bool is_revision(std::string_view text) {
    return is_word(text, "-./") && text.find("..") == std::string_view::npos && text.front() != '/' &&
           text.back() != '/' && text.find("//") == std::string_view::npos;
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
    if (!text.starts_with(prefix)) return false;
    text.remove_prefix(prefix.size());
    return true;
}

}  // namespace

std::optional<Repository> parse_repository(Kind kind, const std::string& text) {
    Repository found{kind, "", "main", ""};
    std::string_view rest = text;
    if (take_prefix(rest, scheme)) {
        if (take_prefix(rest, "datasets/"))
            found.kind = Kind::dataset;
        else if (take_prefix(rest, "models/"))
            found.kind = Kind::model;
        const std::size_t owner = rest.find('/');
        const std::size_t end = owner == std::string_view::npos ? owner : rest.find('/', owner + 1);
        if (end != std::string_view::npos) {
            found.inside = rest.substr(end + 1);
            rest = rest.substr(0, end);
        }
        if (found.inside.find("..") != std::string::npos || found.inside.starts_with('/')) return std::nullopt;
    }
    const std::size_t at = rest.find('@');
    if (at != std::string_view::npos) {
        found.revision = rest.substr(at + 1);
        rest = rest.substr(0, at);
    }
    found.id = rest;
    if (!is_id(found.id) || !is_revision(found.revision)) return std::nullopt;
    return found;
}

std::string folder_of_configuration(const std::string& path, const std::string& configuration) {
    if (configuration.empty()) return path;
    const bool local = std::filesystem::exists(path) || path.starts_with(scheme);
    const bool of_hub = !local && parse_repository(Kind::dataset, path);
    return (of_hub ? "hf://datasets/" : "") + path + (path.ends_with('/') ? "" : "/") + configuration;
}

}  // namespace unsloth::hub
