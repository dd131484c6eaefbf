// A model of which only the description is there: for planning.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "unsloth/formats/load_plan.h"

namespace unsloth::formats {

/// As WeightFile::open, but no tensor has values: matrices are as `quantization` says, all else is of the spec's type.
/// `folder`: of the description, for messages.
std::shared_ptr<const WeightFile> describe_model(spec::ModelSpec spec,
                                                 std::optional<QuantizationConfig> quantization = std::nullopt,
                                                 std::filesystem::path folder = {});

}  // namespace unsloth::formats
