#include "unsloth/tokenizer/ordered_row.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/core/json_depth.h"

namespace unsloth::tokenizer {
namespace {

using Json = nlohmann::ordered_json;

int64_t count(std::string_view text, char c) {
    return std::count(text.begin(), text.end(), c);
}

}  // namespace

Json parse_ordered(std::string_view text) {
    // Looking closer costs a fifth of the parser's time; few rows have so many brackets or strings at all.
    if (count(text, '[') + count(text, '{') > deepest_ordered_json && json_nesting_depth(text) > deepest_ordered_json)
        throw input_error(cat("the JSON nests deeper than ", deepest_ordered_json, " levels"));
    if (count(text, '"') > 2 * most_ordered_keys && most_json_keys(text) > most_ordered_keys)
        throw input_error(cat("an object has more than ", most_ordered_keys, " keys"));
    return Json::parse(text.begin(), text.end());
}

Json try_parse_ordered(std::string_view text) {
    try {
        return parse_ordered(text);
    } catch (const Json::exception&) {
    } catch (const Error&) {
    }
    return Json(Json::value_t::discarded);
}

}  // namespace unsloth::tokenizer
