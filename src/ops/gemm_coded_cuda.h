// The CUDA form of gemm_coded (built with UNSLOTH_CUDA only).
#pragma once

#include "unsloth/ops/gemm_coded.h"

namespace unsloth::ops {

/// `args` is checked, M, N and K are positive.
void gemm_coded_cuda(Context& ctx, const GemmCoded& args);

}  // namespace unsloth::ops
