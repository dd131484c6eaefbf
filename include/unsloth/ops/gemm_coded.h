// Products of e4m3 matrices with scales by row, and a bf16 low-rank term behind them: the base product of a
// LoRA linear layer in 8 bits.
#pragma once

#include <optional>

#include "unsloth/ops/context.h"

namespace unsloth::ops {

/// A matrix as 8-bit floating codes: value[i, j] = scales[i] * e4m3(codes[i, j]). Empty: both undefined.
struct CodedMatrix {
    at::Tensor codes;   ///< [rows, cols] uint8 or float8_e4m3fn, contiguous; no NaN codes
    at::Tensor scales;  ///< [rows] fp32, contiguous
};

/// out = x w^T + u b^T + residual + bias. Forward of a layer: w holds W's rows; backward: the transpose of W,
/// quantised by its own rows, is w, and dy is x.
struct GemmCoded {
    CodedMatrix x;                            ///< [M, K], K a multiple of 16
    CodedMatrix w;                            ///< [N, K], N a multiple of 8
    at::Tensor out;                           ///< [M, N] bf16, on the CPU also fp32; row stride free
    std::optional<at::Tensor> u = {};         ///< [M, R], out's dtype, row stride free; R a multiple of 8
    std::optional<at::Tensor> b = {};         ///< [N, R] likewise, present when u is
    std::optional<at::Tensor> residual = {};  ///< [M, N], out's dtype, row stride free; may be out itself
    std::optional<at::Tensor> bias = {};      ///< [N], contiguous, out's dtype
    const char* label = "gemm fp8";           ///< its name in a profile
};

/// CUDA: our own kernel where ctx.kernels says so, else cuBLASLt, with
/// u b^T (+ residual) as a product of its own before; ctx.workspace serves both. Our kernel rounds once; the
/// library's way rounds u b^T + residual to bf16 as well. Sums over K stay in the tensor cores' accumulators,
/// whose precision ends near 14 bits: relative L2 error beside bf16's rounding 1.3e-3 at K = 4096, 2.9e-3 at
/// 14336, 4.4e-3 at 28672. The same bits each time. CPU: fp32 products of the dequantised matrices, one
/// rounding. Addresses and row strides are multiples of 16 bytes on CUDA (those of u, b and residual too).
/// CheckError otherwise, for mismatched shapes, dtypes or devices, and on a card that has no such product. M
/// of 0 is allowed.
void gemm_coded(Context& ctx, const GemmCoded& args);

}  // namespace unsloth::ops
