// GEMMs of 8-bit quantized matrices, followed by a bf16 low-rank term: the base GEMM of a LoRA linear layer in 8
// bits.
#pragma once

#include <optional>

#include "unsloth/ops/context.h"

namespace unsloth::ops {

/// A matrix as 8-bit codes (ops/coded_rows.h). Empty: codes undefined.
///
/// e4m3: value[i, j] = scales[i] codes[i, j]. int8, of a product's w: scales[i] codes[i, j] factors[j]; of its x:
/// scales[j / 256, i] codes[i, j] / factors[j]. In the product the factors cancel.
struct CodedMatrix {
    at::Tensor codes;   ///< [rows, cols] int8, or float8_e4m3fn or uint8 (e4m3), contiguous; no NaN codes
    at::Tensor scales;  ///< fp32. [rows], contiguous; of int8's x [cols / 256 rounded up, rows], row stride a multiple
                        ///< of 4
    at::Tensor factors = {};  ///< int8 alone: [cols] bf16, powers of two; undefined: ones
};

constexpr int64_t int8_block = 256;  ///< columns of x that share a scale
constexpr int64_t int8_blocks(int64_t columns) {
    return (columns + int8_block - 1) / int8_block;
}
inline bool is_int8(const CodedMatrix& matrix) {
    return matrix.codes.scalar_type() == at::kChar;
}

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
    const char* label = "gemm coded";         ///< its name in a profile
};

/// CUDA: our own kernel where ctx.kernels says so, else cuBLASLt, with u b^T (+ residual) as a GEMM of its own
/// before; ctx.workspace is for both. Our kernel rounds once; the library's way rounds u b^T + residual to
/// bf16 as well. Sums over K stay in the tensor cores' accumulators, whose precision ends near 14 bits:
/// relative L2 error in addition to bf16's rounding 1.3e-3 at K = 4096, 2.9e-3 at 14336, 4.4e-3 at 28672;
/// those of int8 values are exact in each block of 256, and fp32 beyond. int8 GEMMs are our own kernels'
/// alone, Hopper's or one of mma.sync. The same bits each time. CPU: fp32 GEMMs of the dequantised matrices,
/// one rounding. Addresses and row strides are multiples of 16 bytes on CUDA (those of u, b and residual too).
/// CheckError otherwise, for mismatched shapes, dtypes or devices, and on a card that has no such GEMM. M of 0
/// is allowed.
void gemm_coded(Context& ctx, const GemmCoded& args);

}  // namespace unsloth::ops
