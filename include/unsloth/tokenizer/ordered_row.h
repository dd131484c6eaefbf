// JSON rows whose keys keep their order, as chat templates show them.
//
// nlohmann's ordered objects are lists: finding a key compares all, and a list that grows copies its values, recursing
// into them. So a row of very many keys would take forever, and one that nests very deep would run off the stack.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace unsloth::tokenizer {

inline constexpr int most_ordered_keys = 10000;  ///< of one object
inline constexpr int deepest_ordered_json = 1000;

/// Parses one document. Throws what nlohmann::json::parse throws, and an input Error beyond these limits.
nlohmann::ordered_json parse_ordered(std::string_view text);
/// The same, with a discarded value for whatever cannot be parsed.
nlohmann::ordered_json try_parse_ordered(std::string_view text);

}  // namespace unsloth::tokenizer
