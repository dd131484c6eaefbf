#include "formats/json.h"

#include <unordered_set>

namespace unsloth::formats {
namespace {

/// The depth a JSON text nests to, brackets in strings aside, found without recursion.
int nesting_depth(std::string_view text) {
    int depth = 0, deepest = 0;
    bool in_string = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (in_string) {
            if (c == '\\')
                ++i;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            deepest = std::max(deepest, ++depth);
        } else if (c == '}' || c == ']') {
            --depth;
        }
    }
    return deepest;
}

}  // namespace

template <class AnyJson>
AnyJson parse_json(std::string_view text, const std::string& source) {
    if (nesting_depth(text) > max_json_depth)
        throw input_error(cat(source, ": the JSON nests deeper than ", max_json_depth, " levels"));
    std::vector<std::unordered_set<std::string>> keys;
    using Event = typename AnyJson::parse_event_t;
    const auto callback = [&](int, Event event, AnyJson& parsed) {
        if (event == Event::object_start) {
            keys.emplace_back();
        } else if (event == Event::object_end) {
            keys.pop_back();
        } else if (event == Event::key && !keys.back().insert(parsed.template get<std::string>()).second) {
            throw input_error(
                cat(source, ": the key '", parsed.template get<std::string>(), "' stands twice in one object"));
        }
        return true;
    };
    try {
        return AnyJson::parse(text.begin(), text.end(), callback);
    } catch (const nlohmann::json::exception& error) {
        throw input_error(cat(source, ": not valid JSON: ", error.what()));
    }
}

template Json parse_json<Json>(std::string_view, const std::string&);
template OrderedJson parse_json<OrderedJson>(std::string_view, const std::string&);

}  // namespace unsloth::formats
