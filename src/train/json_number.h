// Numbers in JSON, which has no NaN and no infinity.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

namespace unsloth::train {

/// null stands for what is not finite or absent.
inline nlohmann::ordered_json number(std::optional<double> value) {
    return value && std::isfinite(*value) ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

}  // namespace unsloth::train
