// Writes the adapters of many projections and layers into the margins of their weight buffers in one launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "unsloth/spec/dtype.h"

namespace unsloth::kernels {

/// out[row, column] = scale * source[row, column] (out[column, row] when transposed), rounded once to `type`.
struct AdapterBlock {
    const float* source = nullptr;  ///< [rows, columns]; nullptr: zeros
    int64_t source_stride = 0;      ///< of its rows
    void* out = nullptr;
    int64_t stride = 0;  ///< of out, in elements
    int32_t rows = 0, columns = 0;
    float scale = 1;
    spec::DType type = spec::DType::bf16;  ///< of out: bf16, f16 or f32
    bool transposed = false;
};

/// A thread block's share of an AdapterBlock.
struct AdapterTile {
    uint32_t block = 0;
    uint32_t first = 0;  ///< element, counted row by row
};

/// Tiles of a block of `elements` elements.
int64_t adapter_tile_count(int64_t elements);

/// Cuts blocks [begin, end) of a table into tiles, in order. Host only; CheckError for more than 2^32 - 1 elements in a
/// block.
std::vector<AdapterTile> adapter_tiles(const AdapterBlock* blocks, int64_t begin, int64_t end);

/// Fills what `tiles` name. Both tables are in device memory and stay until the kernel has run; tile.block counts from
/// `blocks`. A layer alone is its run of tiles. Outputs do not overlap. CheckError when a launch fails.
void fill_adapters(const AdapterBlock* blocks, const AdapterTile* tiles, int64_t tile_count, cudaStream_t stream);

}  // namespace unsloth::kernels
