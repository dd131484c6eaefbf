// y = (x8 w8^T) scaled by row and column + u b^T (+ residual) (+ bias): a base GEMM of 8-bit codes, then LoRA's
// GEMM. The operands of the implementations: the library's (gemm_fp8_cublaslt.h, e4m3 alone) and ours
// (coded_gemm_sm90.h; int8_gemm_mma.h, int8 alone).
#pragma once

#include <cstdint>

namespace unsloth::kernels {

/// What x's and w's codes are. e4m3: a scale for each row of both. int8: x has one for each row and int8_block of k, w
/// one for each row.
enum class CodeFormat : uint8_t { e4m3, int8 };
inline constexpr int64_t int8_block = 256;

/// y[m, n] = sw[n] sum_k sx[m, k] x[m, k] w[n, k] + sum_r u[m, r] b[n, r] + residual[m, n] + bias[n].
/// Device pointers, row-major. Row strides are in elements; x and w are packed (row stride k). y may be
/// residual.
struct CodedGemmCase {
    CodeFormat format = CodeFormat::e4m3;
    int64_t m = 0, n = 0, k = 0;  ///< positive; n a multiple of 8, k of 16
    int64_t rank = 0;             ///< columns of u and b, a multiple of 8; 0: no such product
    const void* x = nullptr;      ///< [m, k]
    const float* sx = nullptr;    ///< e4m3: [m]; int8: [k / 256 rounded up, sx_stride], of which m are used
    int64_t sx_stride = 0;
    const void* w = nullptr;    ///< [n, k]
    const float* sw = nullptr;  ///< [n]
    const void* u = nullptr;    ///< [m, rank] bf16
    int64_t u_stride = 0;
    const void* b = nullptr;  ///< [n, rank] bf16
    int64_t b_stride = 0;
    const void* residual = nullptr;  ///< [m, n] bf16; nullptr: none
    int64_t residual_stride = 0;
    const void* bias = nullptr;  ///< [n] bf16; nullptr: none
    void* y = nullptr;           ///< [m, n] bf16
    int64_t y_stride = 0;
};

/// How the kernel cuts the work; every combination that is built gives the same function.
struct CodedTile {
    int columns = 256;  ///< of a tile (128 rows): 128, 192 or, of e4m3 alone, 256
    int cluster = 2;    ///< blocks that share a tile of w: 1 or 2
    int band = 8;       ///< clusters below one another before the next column of tiles
};

/// What every kernel of ours wants of addresses, strides and sizes: 16-byte aligned rows, indices of 32 bits.
inline bool coded_gemm_aligned(const CodedGemmCase& c) {
    constexpr int64_t most = int64_t{1} << 31;
    const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
    const bool tail =
        c.rank == 0 || (c.rank % 8 == 0 && aligned(c.u) && aligned(c.b) && c.u_stride % 8 == 0 && c.b_stride % 8 == 0);
    const bool residual = !c.residual || (aligned(c.residual) && c.residual_stride % 8 == 0);
    return c.n % 8 == 0 && c.k % 16 == 0 && c.m < most && c.n < most && c.k < most && aligned(c.x) && aligned(c.w) &&
           aligned(c.sw) && aligned(c.y) && c.y_stride % 8 == 0 && tail && residual;
}

}  // namespace unsloth::kernels
