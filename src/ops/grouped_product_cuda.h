// The CUDA form of grouped products (built with UNSLOTH_CUDA only).
#pragma once

#include "unsloth/ops/experts.h"

namespace unsloth::ops {

/// `args` are checked, and there is something to write.
void grouped_product_cuda(Context& ctx, const GroupedProduct& args);
void grouped_gradient_cuda(Context& ctx, const GroupedGradient& args);

}  // namespace unsloth::ops
