// y = (x8 w8^T) scaled by row and column + u b^T (+ residual) (+ bias): a base product on e4m3 codes with
// LoRA's product behind it. What both implementations take: the library's (gemm_fp8_cublaslt.h) and ours
// (fp8_gemm_sm90.h).
#pragma once

#include <cstdint>

namespace unsloth::kernels {

/// y[m, n] = sx[m] sw[n] sum_k x[m, k] w[n, k] + sum_r u[m, r] b[n, r] + residual[m, n] + bias[n].
/// Device pointers, row-major. Row strides are in elements; x and w are packed (row stride k). y may be
/// residual.
struct Fp8GemmCase {
    int64_t m = 0, n = 0, k = 0;  ///< positive; n a multiple of 8, k of 16
    int64_t rank = 0;             ///< columns of u and b, a multiple of 8; 0: no such product
    const void* x = nullptr;      ///< [m, k] e4m3
    const float* sx = nullptr;    ///< [m]
    const void* w = nullptr;      ///< [n, k] e4m3
    const float* sw = nullptr;    ///< [n]
    const void* u = nullptr;      ///< [m, rank] bf16
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
struct Fp8Tile {
    int columns = 256;  ///< of a tile (128 rows): 128, 192 or 256
    int cluster = 2;    ///< blocks that share a tile of w: 1 or 2
    int band = 8;       ///< clusters below one another before the next column of tiles
};

}  // namespace unsloth::kernels
