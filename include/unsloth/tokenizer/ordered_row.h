// JSON rows whose keys keep their order, as chat templates show them.
//
// nlohmann's ordered objects are lists: finding a key compares all, and a list that grows copies its values, recursing
// into them. So a row of very many keys would take forever, and one that nests very deep would run off the stack.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>

namespace unsloth::tokenizer {

inline constexpr int most_ordered_keys = 10000;  ///< of one object
inline constexpr int deepest_ordered_json = 1000;

/// Parses one document. Throws what nlohmann::json::parse throws, and an input Error beyond these limits.
nlohmann::ordered_json parse_ordered(std::string_view text);
/// The same, with a discarded value for whatever cannot be parsed.
nlohmann::ordered_json try_parse_ordered(std::string_view text);

/// The message of a row's column system, for messages of which `first` is the first. Nothing where there is no such
/// column, and where `first` is the system's with the same text. Input Error where that is another text.
std::optional<nlohmann::ordered_json> system_message(const nlohmann::ordered_json& row,
                                                     const nlohmann::ordered_json& first);
/// Gives a row's `messages` that message, in place of the column.
void put_system_first(nlohmann::ordered_json& row);

}  // namespace unsloth::tokenizer
