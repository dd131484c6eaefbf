// A tower's tensors as a checkpoint names them.
#pragma once

#include <vector>

#include "unsloth/spec/model_spec.h"
#include "unsloth/spec/tensor_table.h"

namespace unsloth::formats {

/// Of spec.vision, in the order of spec::vision_tensors, each with its own shape; none without a tower. Linears'
/// weights may be quantised. `within`: below the module `model`, as of transformers 4.52.
std::vector<spec::TensorRule> vision_rules(const spec::ModelSpec& spec, bool within);

/// From a tensor's own shape to the matrix or vector that a TensorSource has.
void flatten_shape(std::vector<int64_t>& shape);

}  // namespace unsloth::formats
