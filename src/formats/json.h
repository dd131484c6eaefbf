// JSON as the readers of this module need it.
#pragma once

#include <nlohmann/json.hpp>

#include "unsloth/core/json.h"
#include "unsloth/core/json_reader.h"

namespace unsloth::formats {

using Json = nlohmann::json;
/// Keeps the keys of an object in file order (PEFT's patterns are tried in it).
using OrderedJson = nlohmann::ordered_json;

using JsonReader = unsloth::JsonReader<OrderedJson>;

}  // namespace unsloth::formats
