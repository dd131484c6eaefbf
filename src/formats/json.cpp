#include "formats/json.h"

#include <type_traits>
#include <unordered_set>

#include "unsloth/core/json_depth.h"

namespace unsloth::formats {

template <class AnyJson>
AnyJson parse_json(std::string_view text, const std::string& source) {
    if (json_nesting_depth(text) > max_json_depth)
        throw input_error(cat(source, ": the JSON nests deeper than ", max_json_depth, " levels"));
    constexpr bool is_ordered = std::is_same_v<AnyJson, OrderedJson>;
    std::vector<std::unordered_set<std::string>> keys;
    using Event = typename AnyJson::parse_event_t;
    const auto callback = [&](int, Event event, AnyJson& parsed) {
        if (event == Event::object_start) {
            keys.emplace_back();
        } else if (event == Event::object_end) {
            keys.pop_back();
        } else if (event == Event::key && is_ordered && keys.back().size() == most_ordered_keys) {
            throw input_error(cat(source, ": an object has more than ", most_ordered_keys, " keys"));
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
