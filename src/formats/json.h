// JSON as the readers of this module need it: duplicate keys are refused.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "unsloth/core/json_reader.h"

namespace unsloth::formats {

using Json = nlohmann::json;
/// Keeps the keys of an object in file order (PEFT's patterns are tried in it).
using OrderedJson = nlohmann::ordered_json;

/// Deeper nesting than any file we read has; a parser that recurses on its input needs a bound.
inline constexpr int max_json_depth = 64;

/// Finding a key of an ordered object compares all: one of very many would take forever.
inline constexpr std::size_t most_ordered_keys = 10000;

/// Refuses a text that nests too deep, is no JSON or UTF-8, names a key twice in an object, or (in file order) has an
/// object of more than most_ordered_keys keys. `source` stands in
/// messages.
template <class AnyJson>
AnyJson parse_json(std::string_view text, const std::string& source);

extern template Json parse_json<Json>(std::string_view, const std::string&);
extern template OrderedJson parse_json<OrderedJson>(std::string_view, const std::string&);

using JsonReader = unsloth::JsonReader<OrderedJson>;

}  // namespace unsloth::formats
