// Objects keep the file's order: rank_pattern's first match wins, and what is printed follows the option table.
#pragma once

#include <nlohmann/json.hpp>

namespace unsloth::config {

using Json = nlohmann::ordered_json;

}  // namespace unsloth::config
