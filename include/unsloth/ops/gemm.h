// Matrix products on strided 2-D tensors: MKL through ATen on the CPU, cuBLASLt on CUDA.
#pragma once

#include <optional>

#include "unsloth/ops/context.h"

namespace unsloth::ops {

struct Gemm {
    at::Tensor a;    ///< [M, K], or [K, M] with transpose_a; last dimension contiguous, row stride free
    at::Tensor b;    ///< [K, N], or [N, K] with transpose_b; same dtype as a
    at::Tensor out;  ///< [M, N]; a's dtype or fp32; may be a slice of a wider buffer; aliases neither a nor b
    bool transpose_a = false;
    bool transpose_b = false;
    double alpha = 1.0;
    double beta = 0.0;                    ///< out = alpha a b + beta c (+ bias)
    std::optional<at::Tensor> c = {};     ///< [M, N], out's dtype; out itself when absent and beta != 0
    std::optional<at::Tensor> bias = {};  ///< [N], contiguous, out's dtype: added to every row
    const char* label = "gemm";           ///< its name in a profile
};

/// fp32 accumulation whatever the inputs (no TF32: fp32 inputs multiply in fp32), one rounding to out's
/// dtype. Parts of a split K are added in fp32 too, in a fixed order. On CUDA: the algorithm that
/// ctx.kernels says, else cuBLASLt's first choice, within ctx.workspace; cached by shape,
/// strides, types and alignment, and never chosen by timing. On the CPU fp64 is allowed as well (all fp64), as a
/// reference. CheckError for mismatched shapes, dtypes or strides, and for a case that cuBLASLt has no algorithm
/// for. M, N or K of 0 is allowed (K = 0 gives beta c + bias).
void gemm(Context& ctx, const Gemm& args);

/// Bytes that ctx.workspace should have for cuBLASLt (0 on the CPU). Less works, with a narrower choice of
/// algorithms.
int64_t gemm_workspace(at::Device device);
/// The same on the CPU, where 16-bit matrices are widened to fp32, for products whose matrices are [m, k], [n, k] and
/// [m, n] in any roles. With less they are allocated.
int64_t gemm_cpu_workspace(at::ScalarType dtype, int64_t m, int64_t n, int64_t k);

}  // namespace unsloth::ops
