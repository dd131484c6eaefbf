// A and B in fixed point (spec/serve_grid.h), laid out as the operands of int8 tensor cores. Device pointers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace unsloth::kernels {

// Tiles: 16 rows of W, 64 of its columns, 16 of the rank (a chunk, padded with zeros). A warp's lane 4 g + t holds
// rows g and g + 8, and columns 16 t to 16 t + 15, of a tile of W. Of a chunk it holds 4 t to 4 t + 3, a byte each:
//   b [row tile][chunk][lane]        16 bytes: high of g, high of g + 8, low of g, low of g + 8
//   a [column tile][chunk][4][lane]  16 bytes: low, high of i = 2 q; low, high of i = 2 q + 1, q the third index;
//                                    i: of column 16 (g / 2) + 2 i + g % 2 of the tile
// What belongs to rows and columns beyond W is not written.
inline constexpr int fold_rows = 16, fold_columns = 64, fold_chunk = 16;

struct FixedOperands {
    int64_t rows = 0, cols = 0;
    int chunks = 0;  ///< 0: no adapter
    uint32_t *b = nullptr, *a = nullptr;
    float* scaled_unit = nullptr;  ///< [rows, padded]: scale times the unit of B's row
    float* a_unit = nullptr;       ///< [cols, padded]: 256 times the unit of A's column
};
/// `workspace`: fixed_operand_bytes, aligned to 16 bytes.
FixedOperands fixed_operands(int64_t rows, int64_t cols, int64_t rank, void* workspace);
int64_t fixed_operand_bytes(int64_t rows, int64_t cols, int64_t rank);

/// Writes `to` from B[rows, rank] and A[rank, cols], fp32 without gaps.
void make_fixed_operands(const float* b, const float* a, int64_t rank, float scale, const FixedOperands& to,
                         cudaStream_t stream);

}  // namespace unsloth::kernels
