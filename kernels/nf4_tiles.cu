// Tiled 4-bit weights: the reordering at load, and dequantisation. A block makes 16 rows of eight adjacent
// tiles. Ceiling: the bandwidth of memory, 2.5 bytes an element.
#include "kernels/common/launch.h"
#include "kernels/nf4_tiles.cuh"
#include "kernels/nf4_tiles.h"
#include "unsloth/core/check.h"

namespace unsloth::kernels {
namespace {

constexpr int warp = warp_size;
constexpr int threads = 256;
constexpr int words_per_tile = spec::nf4_tile_code_bytes / 4;

/// A thread a 32-bit word of codes: units (i, 2j) and (i, 2j + 1) of a sub-block, whose eight elements are
/// the nibbles of four bytes of the flattened weight (an even column in the high nibble).
template <bool kMxfp4>
__global__ void __launch_bounds__(threads)
    make_tiles(const uint8_t* __restrict__ packed, const uint8_t* __restrict__ scales, int64_t cols, int64_t words,
               uint8_t* __restrict__ tiles) {
    const int64_t index = int64_t{blockIdx.x} * threads + threadIdx.x;
    if (index >= words) return;
    const int64_t tile = index / words_per_tile;
    const int word = static_cast<int>(index % words_per_tile);
    const int64_t tiles_per_row = cols / spec::nf4_tile;
    const int64_t tile_row = tile / tiles_per_row, tile_column = tile % tiles_per_row;
    const int sub_block = word / warp, i = word % warp / 4, j = word % 4;
    const int64_t row = tile_row * spec::nf4_tile + sub_block / 4 * 16 + i;
    const int64_t column = tile_column * spec::nf4_tile + sub_block % 4 * 16 + 2 * j;
    uint32_t result = 0;
#pragma unroll
    for (int place = 0; place < 4; ++place) {
        const uint32_t pair = packed[((row + place % 2 * 8) * cols + column + place / 2 * 8) / 2];
        result |= (pair >> 4) << (4 * place) | (pair & 15) << (16 + 4 * place);
    }
    uint8_t* out = tiles + tile * tile_bytes_of<kMxfp4>;
    reinterpret_cast<uint32_t*>(out)[word] = result;
    constexpr int halves = kMxfp4 ? 2 : 1;
    const int half = word / spec::nf4_tile, scale_row = word % spec::nf4_tile;
    if (half < halves)
        out[spec::nf4_tile_code_bytes + word] =
            scales[((tile_row * spec::nf4_tile + scale_row) * tiles_per_row + tile_column) * halves + half];
}

constexpr int strip_rows = 16;
constexpr int strip_tiles = threads / warp;      // a warp a tile
constexpr int tile_chunks = spec::nf4_tile / 8;  // of 16 bytes of bf16 in a tile's row

/// A block makes a strip of 16 rows of eight adjacent tiles. Lane l of a tile's warp turns one row
/// of units into rows l % 8 and l % 8 + 8, columns 16 (l / 8) to + 15; shared memory turns that into stores
/// of 512 consecutive bytes.
template <bool kMxfp4>
__device__ __forceinline__ void dequantize_strip(const spec::Nf4TilesView& weight, __nv_bfloat16* __restrict__ out,
                                                 int64_t row_stride, uint32_t blocks_per_strip) {
    __shared__ uint4 rows[strip_rows][strip_tiles * tile_chunks + 1];  // one more: eight rows hit different banks
    const uint32_t lane = threadIdx.x % warp, warp_index = threadIdx.x / warp;
    const auto tiles_per_row = static_cast<uint32_t>(weight.cols / spec::nf4_tile);
    const uint32_t strip = blockIdx.x / blocks_per_strip, first_tile = blockIdx.x % blocks_per_strip * strip_tiles;
    const uint32_t tile_column = min(first_tile + warp_index, tiles_per_row - 1);
    const uint8_t* tile =
        weight.tiles + (int64_t{strip / 4} * tiles_per_row + tile_column) * int64_t{tile_bytes_of<kMxfp4>};

    const uint4 units = __ldcs(reinterpret_cast<const uint4*>(tile + strip % 4 * 512) + lane);
    // MXFP4: the lower half of the warp has the left half of the columns, and their scales.
    const uint32_t half = kMxfp4 ? lane / strip_rows : 0;
    const uint8_t scale_code =
        tile[spec::nf4_tile_code_bytes + half * spec::nf4_tile + strip % 4 * strip_rows + lane % strip_rows];
    float scale_of_lane;
    if constexpr (kMxfp4) {
        scale_of_lane = mxfp4_scale(scale_code);
    } else {
        const int64_t block = (int64_t{strip} * strip_rows + lane % strip_rows) * tiles_per_row + tile_column;
        scale_of_lane = nf4_scale(weight.nested_map[scale_code],
                                  weight.nested_absmax[block / spec::quant4_nested_block], weight.nested_offset);
    }
    const float code_value = weight.code[lane % 16];
    const uint32_t words[4] = {units.x, units.y, units.z, units.w};
#pragma unroll
    for (uint32_t lower = 0; lower < 2; ++lower) {  // rows l % 8 + 8 lower, the places 0 and 2, or 1 and 3, of a unit
        const float scale =
            __shfl_sync(all_lanes, scale_of_lane, static_cast<int>(half * strip_rows + lane % 8 + 8 * lower));
#pragma unroll
        for (uint32_t right = 0; right < 2; ++right) {
            const uint32_t shift = 4 * lower + 8 * right;
            uint32_t pairs[4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                pairs[i] = nf4_pair(words[i] >> shift, words[i] >> (shift + 16), code_value, scale, scale);
            rows[lane % 8 + 8 * lower][warp_index * tile_chunks + lane / 8 * 2 + right] =
                make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        }
    }
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t row = warp_index * 2 + i / 2, chunk = i % 2 * warp + lane;
        if (first_tile + chunk / tile_chunks < tiles_per_row)
            *reinterpret_cast<uint4*>(out + (int64_t{strip} * strip_rows + row) * row_stride +
                                      first_tile * spec::nf4_tile + chunk * 8) = rows[row][chunk];
    }
}

template <bool kMxfp4>
__global__ void __launch_bounds__(threads) dequantize_tiles(spec::Nf4TilesView weight, __nv_bfloat16* __restrict__ out,
                                                            int64_t row_stride, uint32_t blocks_per_strip) {
    dequantize_strip<kMxfp4>(weight, out, row_stride, blocks_per_strip);
}

/// The same of weight blockIdx.y of many, which differ in their pointers alone.
template <bool kMxfp4>
__global__ void __launch_bounds__(threads)
    dequantize_many_tiles(const spec::Nf4TilesView* __restrict__ weights, __nv_bfloat16* __restrict__ out,
                          int64_t weight_stride, int64_t row_stride, uint32_t blocks_per_strip) {
    dequantize_strip<kMxfp4>(weights[blockIdx.y], out + blockIdx.y * weight_stride, row_stride, blocks_per_strip);
}

}  // namespace

void make_nf4_tiles(const spec::Quant4View& weight, uint8_t* tiles, cudaStream_t stream) {
    UNSLOTH_CHECK(spec::nf4_tiles_supported(weight), "a 4-bit weight [", weight.rows, ", ", weight.cols,
                  "] cannot be stored in tiles");
    const int64_t words = weight.elements() / 8;
    const auto grid = static_cast<unsigned>(ceil_div(words, threads));
    if (weight.exponents != nullptr)
        UNSLOTH_LAUNCH(make_tiles<true>, grid, threads, 0, stream, weight.packed, weight.exponents, weight.cols, words,
                       tiles);
    else
        UNSLOTH_LAUNCH(make_tiles<false>, grid, threads, 0, stream, weight.packed, weight.absmax_u8, weight.cols, words,
                       tiles);
}

void dequantize_nf4_tiles(const spec::Nf4TilesView& weight, void* out, int64_t row_stride, cudaStream_t stream) {
    UNSLOTH_CHECK(
        reinterpret_cast<uintptr_t>(weight.tiles) % 16 == 0 && aligned_16(out, {row_stride}, spec::DType::bf16),
        "dequantize_nf4_tiles: rows of out must start at multiples of 16 bytes, its row stride is ", row_stride);
    const int64_t strips = weight.rows / strip_rows, blocks = ceil_div(weight.cols / spec::nf4_tile, strip_tiles);
    if (strips * blocks == 0) return;
    const auto run = [&](auto kernel) {
        UNSLOTH_LAUNCH(kernel, static_cast<unsigned>(strips * blocks), threads, 0, stream, weight,
                       static_cast<__nv_bfloat16*>(out), row_stride, static_cast<uint32_t>(blocks));
    };
    weight.is_mxfp4() ? run(dequantize_tiles<true>) : run(dequantize_tiles<false>);
}

void dequantize_nf4_tiles(const Nf4TilesTable& weights, void* out, int64_t weight_stride, int64_t row_stride,
                          cudaStream_t stream) {
    UNSLOTH_CHECK(aligned_16(out, {weight_stride, row_stride}, spec::DType::bf16),
                  "dequantize_nf4_tiles: rows of out must start at multiples of 16 bytes, its row stride is ",
                  row_stride);
    const int64_t strips = weights.rows / strip_rows, blocks = ceil_div(weights.cols / spec::nf4_tile, strip_tiles);
    if (strips * blocks == 0 || weights.count == 0) return;
    const dim3 grid(static_cast<unsigned>(strips * blocks), static_cast<unsigned>(weights.count));
    const auto run = [&](auto kernel) {
        UNSLOTH_LAUNCH(kernel, grid, threads, 0, stream, weights.views, static_cast<__nv_bfloat16*>(out), weight_stride,
                       row_stride, static_cast<uint32_t>(blocks));
    };
    weights.mxfp4 ? run(dequantize_many_tiles<true>) : run(dequantize_many_tiles<false>);
}

}  // namespace unsloth::kernels
