// Numbers in JSON, which has no NaN and no infinity.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

namespace unsloth::train {

/// null for a number that is not finite or absent.
nlohmann::ordered_json number(std::optional<double> value);

}  // namespace unsloth::train
