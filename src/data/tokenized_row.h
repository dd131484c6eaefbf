#pragma once
// Rows that are token ids already.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

namespace unsloth::data {

/// The 32-bit integers of an array. Throws BadRow (data.column-type) with the column's name for anything else.
std::vector<int32_t> integers(const nlohmann::ordered_json& value, const char* column);

}  // namespace unsloth::data
