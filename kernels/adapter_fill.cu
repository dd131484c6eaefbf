// Adapters into the margins of the weight buffers. A block of threads takes a tile of one matrix: which, it reads from
// a table, so that matrices of all sizes share a launch without idle blocks.
// Ceiling: the bandwidth of memory, 6 bytes an element of bf16; for few layers the launch.
#include "kernels/adapter_fill.h"
#include "kernels/common/device.cuh"
#include "kernels/common/launch.h"
#include "unsloth/core/check.h"

namespace unsloth::kernels {
namespace {

constexpr int fill_threads = 256, fill_width = 8, fill_packs = 1;
constexpr uint32_t tile_elements = fill_threads * fill_width * fill_packs;

template <class T>
__device__ __forceinline__ void fill_tile(const AdapterBlock& block, uint32_t first) {
    const uint32_t columns = static_cast<uint32_t>(block.columns);
    const uint32_t elements = static_cast<uint32_t>(block.rows) * columns, end = min(first + tile_elements, elements);
    T* out = static_cast<T*>(block.out);
    const bool wide =
        !block.transposed && columns % fill_width == 0 && block.stride * static_cast<int64_t>(sizeof(T)) % 16 == 0 &&
        block.source_stride * static_cast<int64_t>(sizeof(float)) % 16 == 0 &&
        (reinterpret_cast<std::uintptr_t>(out) | reinterpret_cast<std::uintptr_t>(block.source)) % 16 == 0;
    if (wide) {
        Pack<float, fill_width> in[fill_packs] = {};
#pragma unroll
        for (int i = 0; i < fill_packs; ++i) {
            const uint32_t at = first + (i * fill_threads + threadIdx.x) * fill_width;
            if (at < end && block.source != nullptr)
                in[i] = load_pack<fill_width>(block.source + at / columns * block.source_stride + at % columns);
        }
#pragma unroll
        for (int i = 0; i < fill_packs; ++i) {
            const uint32_t at = first + (i * fill_threads + threadIdx.x) * fill_width;
            if (at >= end) continue;
            Pack<T, fill_width> result;
#pragma unroll
            for (int k = 0; k < fill_width; ++k) result.v[k] = from_float<T>(in[i].v[k] * block.scale);
            store_pack(out + at / columns * block.stride + at % columns, result);
        }
        return;
    }
    for (uint32_t at = first + threadIdx.x; at < end; at += fill_threads) {
        const uint32_t row = at / columns, column = at % columns;
        const float value =
            block.source != nullptr ? block.source[row * block.source_stride + column] * block.scale : 0.f;
        out[block.transposed ? column * block.stride + row : row * block.stride + column] = from_float<T>(value);
    }
}

__global__ void __launch_bounds__(fill_threads)
    fill_kernel(const AdapterBlock* __restrict__ blocks, const AdapterTile* __restrict__ tiles) {
    const AdapterTile tile = tiles[blockIdx.x];
    const AdapterBlock block = blocks[tile.block];
    switch (block.type) {
        case spec::DType::bf16:
            return fill_tile<__nv_bfloat16>(block, tile.first);
        case spec::DType::f16:
            return fill_tile<__half>(block, tile.first);
        default:
            return fill_tile<float>(block, tile.first);
    }
}

}  // namespace

int64_t adapter_tile_count(int64_t elements) {
    return ceil_div(elements, tile_elements);
}

std::vector<AdapterTile> adapter_tiles(const AdapterBlock* blocks, int64_t begin, int64_t end) {
    std::vector<AdapterTile> tiles;
    for (int64_t i = begin; i < end; ++i) {
        const int64_t elements = int64_t{blocks[i].rows} * blocks[i].columns;
        UNSLOTH_CHECK(blocks[i].type == spec::DType::bf16 || blocks[i].type == spec::DType::f16 ||
                          blocks[i].type == spec::DType::f32,
                      "adapter block of ", spec::name_of(blocks[i].type));
        UNSLOTH_CHECK(elements <= int64_t{0xFFFFFFFF} - tile_elements, "adapter block of ", elements, " elements");
        for (int64_t first = 0; first < elements; first += tile_elements)
            tiles.push_back({static_cast<uint32_t>(i), static_cast<uint32_t>(first)});
    }
    return tiles;
}

void fill_adapters(const AdapterBlock* blocks, const AdapterTile* tiles, int64_t tile_count, cudaStream_t stream) {
    if (tile_count == 0) return;
    UNSLOTH_CHECK(tile_count <= 0x7FFFFFFF, "adapters of ", tile_count, " tiles");
    UNSLOTH_LAUNCH(fill_kernel, static_cast<unsigned>(tile_count), fill_threads, 0, stream, blocks, tiles);
}

}  // namespace unsloth::kernels
