// 4-bit weights in tiles (spec/nf4_tiles.h): making them and dequantising them. All pointers are device
// pointers, work is issued on `stream`, nothing synchronises; a failed launch throws.
#pragma once

#include <cuda_runtime_api.h>

#include "unsloth/spec/nf4_tiles.h"

namespace unsloth::kernels {

/// tiles [rows / 64, cols / 64] of a Nf4TilesView, aligned to 16 bytes, from the codes and scales of a weight that
/// nf4_tiles_supported. Does not work in place.
void make_nf4_tiles(const spec::Quant4View& weight, uint8_t* tiles, cudaStream_t stream);

/// out [rows, cols] bf16, aligned to 16 bytes, row_stride >= cols a multiple of 8: the bits that
/// dequantize_4bit (kernels/nf4.h) gives.
void dequantize_nf4_tiles(const spec::Nf4TilesView& weight, void* out, int64_t row_stride, cudaStream_t stream);

/// Many weights of one size, whose descriptions are in device memory; their tiles are aligned to 16 bytes.
struct Nf4TilesTable {
    const spec::Nf4TilesView* views = nullptr;  ///< [count]
    int64_t count = 0;
    int64_t rows = 0, cols = 0;
    bool mxfp4 = false;  ///< all of them
};
/// The same of all of them: out [count, rows, cols], weight_stride a multiple of 8 too.
void dequantize_nf4_tiles(const Nf4TilesTable& weights, void* out, int64_t weight_stride, int64_t row_stride,
                          cudaStream_t stream);

}  // namespace unsloth::kernels
