#include "unsloth/train/json_number.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace unsloth::train {

nlohmann::ordered_json number(std::optional<double> value) {
    return value && std::isfinite(*value) ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

}  // namespace unsloth::train
