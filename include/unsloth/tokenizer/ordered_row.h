// JSON rows whose keys keep their order, as chat templates show them.
//
// nlohmann's ordered objects are lists: finding a key compares all, and a list that grows copies its values, recursing
// into them. So a row of very many keys would take forever, and one that nests very deep would run off the stack.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>

#include "unsloth/core/json.h"

namespace unsloth::tokenizer {

/// Of rows. Files of data repeat keys: the last one counts, as for Python.
inline constexpr JsonRules row_rules{.deepest = 1000, .distinct_keys = false};

/// Parses one document. Throws a JsonRefusal.
nlohmann::ordered_json parse_ordered(std::string_view text);
/// The same, with a discarded value for whatever is refused.
nlohmann::ordered_json try_parse_ordered(std::string_view text);

/// The message of a row's column system, for messages of which `first` is the first. Nothing where there is no such
/// column, and where `first` is the system's with the same text. Input Error where that is another text.
std::optional<nlohmann::ordered_json> system_message(const nlohmann::ordered_json& row,
                                                     const nlohmann::ordered_json& first);
/// Gives a row's `messages` that message, in place of the column.
void put_system_first(nlohmann::ordered_json& row);

}  // namespace unsloth::tokenizer
