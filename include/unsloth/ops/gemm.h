// Matrix products on strided 2-D tensors: MKL through ATen on the CPU, cuBLASLt on CUDA.
#pragma once

#include <optional>

#include "unsloth/ops/context.h"

namespace unsloth::ops {

struct Gemm {
    at::Tensor a;              ///< [M, K], or [K, M] with transpose_a; last dimension contiguous, row stride free
    at::Tensor b;              ///< [K, N], or [N, K] with transpose_b; same dtype as a
    at::Tensor out;            ///< [M, N]; a's dtype or fp32
    bool transpose_a = false;
    bool transpose_b = false;
    double alpha = 1.0;
    double beta = 0.0;         ///< out = alpha a b + beta c (+ bias)
    std::optional<at::Tensor> c;     ///< [M, N], out's dtype; out itself when absent and beta != 0
    std::optional<at::Tensor> bias;  ///< [N], a's dtype or fp32: added to every row
};

/// fp32 accumulation whatever the inputs (no TF32: fp32 inputs multiply in fp32), one rounding to out's dtype.
/// On CUDA: cuBLASLt's first heuristic choice within ctx.workspace, cached by shape, strides and types.
/// CheckError for mismatched shapes, dtypes or strides. M, N or K of 0 is allowed (K = 0 gives beta c + bias).
void gemm(Context& ctx, const Gemm& args);

/// Bytes that ctx.workspace must have for cuBLASLt (0 on the CPU).
int64_t gemm_workspace(at::Device device);

}  // namespace unsloth::ops
