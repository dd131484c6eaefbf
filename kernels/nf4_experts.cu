// Products whose rows belong to experts with 4-bit weights in tiles, for few rows each (decoding): mma.sync with the
// weights as the A operand, dequantised in registers from tiles in shared memory. A block makes 128 outputs of 16 rows
// of an expert; a warp 16 of the outputs. So an expert's codes are read once for every 16 of its rows. Ceiling: the
// bandwidth of memory, half a byte a weight.
#include "kernels/common/launch.h"
#include "kernels/expert_tiles.cuh"
#include "kernels/nf4_experts.h"
#include "kernels/nf4_tiles.cuh"

namespace unsloth::kernels {

namespace {

constexpr int row_tiles = 2;                 // of 64 outputs
constexpr int strips = spec::nf4_tile / 16;  // of a tile, a warp each
constexpr int tokens = 16;                   // rows of x
constexpr int threads = row_tiles * strips * warp_size;
constexpr int stages = 6;
constexpr int strip_bytes = spec::nf4_tile_code_bytes / strips;
using XTile = OperandTile<__nv_bfloat16, tokens, spec::nf4_tile, true>;
template <bool kMxfp4>
constexpr int stage_bytes = XTile::kBytes + row_tiles * tile_bytes_of<kMxfp4>;
static_assert(XTile::kBytes % 16 == 0);

/// A lane's sums are those of outputs n and n + 8.
__device__ __forceinline__ void write_sums(const GroupedNf4& p, const ExpertTile& tile,
                                           const float (&sums)[tokens / 8][4], int n, int lane) {
    const auto* bias = static_cast<const __nv_bfloat16*>(p.bias.data);
#pragma unroll
    for (int i = 0; i < tokens / 8; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int64_t row = int64_t{tile.first} + i * 8 + lane % 4 * 2 + j % 2;
            const int column = n + j / 2 * 8;
            if (row >= tile.end) continue;
            __nv_bfloat16* out = static_cast<__nv_bfloat16*>(p.out.data) + row * p.out.stride + column;
            float sum = sums[i][j];
            if (bias != nullptr) sum += to_float(bias[tile.expert * p.bias.stride + column]);
            if (p.accumulate) sum += to_float(*out);
            *out = from_float<__nv_bfloat16>(sum);
        }
}

template <bool kMxfp4>
__global__ void __launch_bounds__(threads) grouped_nf4_kernel(const GroupedNf4 p, unsigned blocks_n) {
    extern __shared__ __align__(16) unsigned char bytes[];
    __shared__ ExpertTile found;
    __shared__ float nested_map[kMxfp4 ? 1 : 256];
    constexpr int tile_bytes = tile_bytes_of<kMxfp4>, tile_packs = tile_bytes / 16;
    static_assert(tile_packs * 16 == tile_bytes);
    const ExpertTile tile = find_tile(p.ends, static_cast<int>(p.w.count), blockIdx.x / blocks_n, tokens, &found);
    if (tile.expert < 0) return;
    const spec::Nf4TilesView w = p.w.views[tile.expert];
    static_assert(threads == 256);
    if constexpr (!kMxfp4) nested_map[threadIdx.x] = w.nested_map[threadIdx.x];  // seen after the first step's barrier
    const int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
    const int k_tiles = static_cast<int>(p.w.cols / spec::nf4_tile),
              n_tiles = static_cast<int>(p.w.rows / spec::nf4_tile);
    const int first_tile = static_cast<int>(blockIdx.x % blocks_n) * row_tiles;
    const int tiles_here = min(row_tiles, n_tiles - first_tile);
    const int row_tile = warp / strips, strip = warp % strips;
    const bool has_work = row_tile < tiles_here;
    const float code_value = w.code[lane % 16];
    const XTile x{static_cast<const __nv_bfloat16*>(p.x.data) + tile.first * p.x.stride, p.x.stride,
                  tile.end - tile.first, static_cast<int>(p.w.cols)};
    const uint32_t shared = shared_address(bytes);

    const auto load = [&](int step) {
        if (step < k_tiles) {
            const uint32_t to = shared + step % stages * stage_bytes<kMxfp4>;
            x.template load<threads>(to, 0, step * spec::nf4_tile);
            for (int i = threadIdx.x; i < tiles_here * tile_packs; i += threads) {
                const int64_t from = int64_t{first_tile + i / tile_packs} * k_tiles + step;
                cp_async_16(to + XTile::kBytes + i * 16, w.tiles + from * tile_bytes + i % tile_packs * 16);
            }
        }
        cp_async_commit_group();
    };
    // Blocks of 64 weights are numbered along the rows; this lane's rows are lane / 4 and that + 8 of the warp's strip.
    const int64_t first_block = (int64_t{first_tile + row_tile} * spec::nf4_tile + strip * 16 + lane / 4) * k_tiles;
    constexpr int halves = kMxfp4 ? 2 : 1;  // of a tile's columns, with scales of their own
    float sums[tokens / 8][4] = {};
    for (int step = 0; step < stages - 1; ++step) load(step);
    for (int step = 0; step < k_tiles; ++step) {
        cp_async_wait_group<stages - 2>();
        __syncthreads();  // this step's tiles are there, and no thread reads those of the step before
        load(step + stages - 1);
        if (!has_work) continue;
        const unsigned char* stage = bytes + step % stages * stage_bytes<kMxfp4>;
        const unsigned char* of_w = stage + XTile::kBytes + row_tile * tile_bytes;
        const unsigned char* scale_codes = of_w + spec::nf4_tile_code_bytes + strip * 16 + lane / 4;
        float scales[halves][2];  // of this lane's rows
        if constexpr (kMxfp4) {
#pragma unroll
            for (int half = 0; half < halves; ++half)
#pragma unroll
                for (int i = 0; i < 2; ++i) scales[half][i] = mxfp4_scale(scale_codes[half * spec::nf4_tile + i * 8]);
        } else {
            const int64_t block = first_block + step;
#pragma unroll
            for (int i = 0; i < 2; ++i)
                scales[0][i] = nf4_scale(
                    nested_map[scale_codes[i * 8]],
                    w.nested_absmax[(block + int64_t{i * 8} * k_tiles) / spec::quant4_nested_block], w.nested_offset);
        }
        uint32_t words[4];  // of the strip's four sub-blocks
        ldmatrix_x4(words, shared_address(of_w) + strip * strip_bytes + lane * 16);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            uint32_t weights[4], right[4];
            nf4_operand(words[k], code_value, scales[k * halves / 4], weights);
            XTile::template fragments<false>(right, shared_address(stage), 0, k * 16, lane);
            mma_m16n8k16<__nv_bfloat16>(sums[0], weights, right[0], right[1]);
            mma_m16n8k16<__nv_bfloat16>(sums[1], weights, right[2], right[3]);
        }
    }
    cp_async_wait_group<0>();
    if (!has_work) return;
    write_sums(p, tile, sums, (first_tile + row_tile) * spec::nf4_tile + strip * 16 + lane / 4, lane);
}

template <bool kMxfp4>
void launch(const GroupedNf4& p, cudaStream_t stream) {
    const int64_t blocks_n = ceil_div(p.w.rows / spec::nf4_tile, row_tiles);
    launch_kernel(
        grouped_nf4_kernel<kMxfp4>,
        {.grid = dim3(static_cast<unsigned>(blocks_n * most_tiles(p.rows, static_cast<int>(p.w.count), tokens))),
         .threads = dim3(threads),
         .shared_bytes = stages * stage_bytes<kMxfp4>,
         .stream = stream},
        p, static_cast<unsigned>(blocks_n));
}

}  // namespace

void grouped_nf4(const GroupedNf4& p, cudaStream_t stream) {
    if (p.rows == 0 || p.w.rows == 0) return;
    p.w.mxfp4 ? launch<true>(p, stream) : launch<false>(p, stream);
}

}  // namespace unsloth::kernels
