// The CUDA form of gemm_fp8 (built with UNSLOTH_CUDA only).
#pragma once

#include "unsloth/ops/gemm_fp8.h"

namespace unsloth::ops {

/// `args` is checked, M, N and K are positive.
void gemm_fp8_cuda(Context& ctx, const GemmFp8& args);

}  // namespace unsloth::ops
