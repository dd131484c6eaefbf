// Scratch of the operators of a pass: one buffer that the largest of them fills.
#pragma once

#include "unsloth/model/activations.h"

namespace unsloth::model {

/// Bytes for micro-batches of these sizes on `device`; of a GPU that is not here an upper bound.
int64_t workspace_bytes(const spec::ModelSpec& spec, const weights::LayerLayout& layout, const ActivationSizes& sizes,
                        const spec::RunPlan& run, at::ScalarType dtype, at::Device device);

}  // namespace unsloth::model
