// The CUDA form of gemm (built with UNSLOTH_CUDA only).
#pragma once

#include "unsloth/ops/gemm.h"

namespace unsloth::kernels {
struct GemmCase;
}  // namespace unsloth::kernels

namespace unsloth::ops {

/// The product as the kernel library knows it; `args` is checked.
kernels::GemmCase gemm_case(const Gemm& args);

/// `args` is checked, M, N and K are positive.
void gemm_cuda(Context& ctx, const Gemm& args);
int64_t gemm_cuda_workspace(at::Device device);

}  // namespace unsloth::ops
