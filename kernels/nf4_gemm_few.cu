// Products by tiled 4-bit weights for a few tokens (a decoding pass of few rows), on any card from sm_80: mma.sync
// with the weights as the A operand, straight from memory to registers.
//
// A block makes 32 rows of the result at a time, its 16 warps share the reduction, and its blocks of 64 go through
// registers, `stages` ahead. A byte of a tile holds the codes of rows r and r + 8 at one column: a table in shared
// memory (an own copy for each lane, so that no banks conflict) gives both as a pair of bf16. The pair is taken for two
// steps of the reduction, and x enters twice, with zeros in the other's place: one column of the result for row r, one
// for row r + 8. So nothing is exchanged, and a weight costs one instruction of the table and half a load.
//
// What pairs are, and their precision: nf4_gemm.cuh.
//
// Ceiling: the bandwidth of memory; the table's loads allow about 46 weights a clock on an SM, 1.6 times that.
#include "kernels/nf4_gemm.cuh"
#include "unsloth/core/error.h"

namespace unsloth::kernels {
namespace {

using namespace nf4;

constexpr int warps = 16, threads = warps * warp_size;
constexpr int unit_rows = 32;         // half a row of tiles, two strips of 16
constexpr int stages = 3;             // steps that a warp's loads are ahead
constexpr int tail_ahead = 4;         // columns of the tail that a warp holds: its share of ranks up to 64
constexpr int pitch = unit_rows + 8;  // floats between tokens of partial sums: four tokens' eight rows in other banks

template <int Groups>
struct Shared {
    uint8_t table[pair_table_bytes];
    float map[nf4_gemm_most_weights][256];
    float partial[2][warps][4 * Groups][pitch];
};

/// What a warp takes of 32 rows of a block of the reduction.
struct Stage {
    uint4 codes[2];       // of the two strips: 16 columns of rows g and g + 8
    uint32_t scale_code;  // of row `lane`
    float nested_absmax;
};

/// Where a warp's next stage lies: blocks warp, warp + 16, … of a unit's reduction, then of the next unit's. A warp has
/// as many steps as the others, the last may be none.
struct Cursor {
    const uint8_t* half;  // of the tile
    const float* nested_absmax;
    uint32_t nested_block;  // of row `lane`
    int scales_from;
    int unit, step;

    __device__ __forceinline__ void locate(const Problem& p, int units, int warp, int lane) {
        if (unit >= units) return;
        const int row_tile = unit / 2, lower = unit % 2, segment = segment_of(p, row_tile);
        const int n = row_tile - p.segments[segment].first;
        half = p.segments[segment].tiles + (int64_t{n} * p.k_tiles + warp) * spec::nf4_tile_bytes + lower * 1024;
        scales_from = spec::nf4_tile_code_bytes - lower * (1024 - unit_rows) + lane;
        nested_absmax = p.segments[segment].nested_absmax;
        nested_block = static_cast<uint32_t>((n * spec::nf4_tile + lower * unit_rows + lane) * p.k_tiles + warp);
    }
    __device__ __forceinline__ void fetch(const Problem& p, int units, int steps, int warp, int lane, Stage& to) {
        if (unit < units && warp + step * warps < p.k_tiles) {
            const uint8_t* codes = half + lane % 4 * 128 + lane / 4 * 16;
            to.codes[0] = load_once_16(codes);
            to.codes[1] = load_once_16(codes + 512);
            to.scale_code = __ldg(half + scales_from);
            to.nested_absmax = __ldg(nested_absmax + nested_block / spec::quant4_nested_block);
        }
        half += int64_t{warps} * spec::nf4_tile_bytes;
        nested_block += warps;
        if (++step == steps) {
            step = 0;
            unit += static_cast<int>(gridDim.x);
            locate(p, units, warp, lane);
        }
    }
};

template <int Groups>
struct Worker {
    static constexpr int tokens = 4 * Groups;

    const Problem& p;
    Shared<Groups>& s;
    const int warp, lane, first_token;
    const uint32_t lane_place = static_cast<uint32_t>(lane) * 4;
    // x's value in the low or the high half of an operand: of the lower row of a pair, or of the other
    const uint32_t even_place = lane / 4 % 2 == 0 ? 0x4410 : 0x1044, odd_place = lane / 4 % 2 == 0 ? 0x4432 : 0x3244;
    int segment = -1;
    float sums[Groups][4] = {};
    float tail_weights[tail_ahead] = {};

    /// x's 16 values of the lane's token and sub-block.
    __device__ __forceinline__ void load_x(int block, uint4 (&x)[Groups][2]) const {
#pragma unroll
        for (int group = 0; group < Groups; ++group) {
            const int token = first_token + group * 4 + lane / 8;
            x[group][0] = x[group][1] = uint4{};
            if (token >= p.m || block >= p.k_tiles) continue;
            const auto* from =
                reinterpret_cast<const uint4*>(p.x + token * p.x_stride + block * spec::nf4_tile + lane % 4 * 16);
            x[group][0] = from[0];
            x[group][1] = from[1];
        }
    }

    /// By all warps, before a unit's first block.
    __device__ __forceinline__ void enter(int unit) {
        const int now = segment_of(p, unit / 2);
        if (now == segment) return;
        const bool same = segment >= 0 && same_code(p.segments[now], p.segments[segment]);
        segment = now;
        if (same) return;
        __syncthreads();  // the other warps have read the table before
        fill_pair_table(s.table, p.segments[now].code, warp, lane, warps);
        __syncthreads();
    }

    /// Column c of the warp's share of the tail's weight: lane by row; 0 where the share has ended.
    __device__ __forceinline__ float tail_weight(int unit, int c) const {
        const int share = (p.tail + warps - 1) / warps, r = warp * share + c;
        if (c >= share || r >= p.tail) return 0.0F;
        return __bfloat162float(p.tail_weight[(unit * unit_rows + lane) * p.tail_stride + r]);
    }
    __device__ __forceinline__ void load_tail(int unit) {
#pragma unroll
        for (int c = 0; c < tail_ahead; ++c) tail_weights[c] = tail_weight(unit, c);
    }
    /// Adds the warp's share of the tail to its partial sums.
    __device__ __forceinline__ void add_tail(int unit, float (&to)[tokens][pitch]) const {
        const int share = (p.tail + warps - 1) / warps, count = min(share, p.tail - warp * share);
        const __nv_bfloat16* u = p.x + p.k_tiles * spec::nf4_tile + warp * share;
        for (int token = 0; token < min(tokens, p.m - first_token); ++token) {
            float sum = 0.0F;
            for (int c = 0; c < count; ++c) {
                float w = 0.0F;
#pragma unroll
                for (int i = 0; i < tail_ahead; ++i) w = c == i ? tail_weights[i] : w;
                if (c >= tail_ahead) w = tail_weight(unit, c);
                sum += w * __bfloat162float(u[(first_token + token) * p.x_stride + c]);
            }
            to[token][lane] += sum;
        }
    }

    __device__ __forceinline__ uint32_t pair(uint32_t word, int byte) const {
        return pair_of(s.table, lane_place, word, byte);
    }

    __device__ __forceinline__ void multiply(const Stage& stage, const uint4 (&x)[Groups][2], bool exists) {
        float block_sums[Groups][2][4] = {};  // two chains of products
        const uint32_t words[2][4] = {{stage.codes[0].x, stage.codes[0].y, stage.codes[0].z, stage.codes[0].w},
                                      {stage.codes[1].x, stage.codes[1].y, stage.codes[1].z, stage.codes[1].w}};
#pragma unroll
        for (int q = 0; q < 8; ++q) {  // columns q and q + 8 of the lane's 16
            const int i = q / 2, byte = q % 2 * 2;
            const uint32_t a[4] = {pair(words[0][i], byte), pair(words[1][i], byte), pair(words[0][i], byte + 1),
                                   pair(words[1][i], byte + 1)};
#pragma unroll
            for (int group = 0; group < Groups; ++group) {
                const uint32_t low[4] = {x[group][0].x, x[group][0].y, x[group][0].z, x[group][0].w},
                               high[4] = {x[group][1].x, x[group][1].y, x[group][1].z, x[group][1].w};
                const uint32_t place = q % 2 == 0 ? even_place : odd_place;
                mma_m16n8k16<__nv_bfloat16>(block_sums[group][q % 2], a, __byte_perm(low[i], 0, place),
                                            __byte_perm(high[i], 0, place));
            }
        }
        float scale = 0.0F;
        if (exists)
            scale =
                nf4_scale(s.map[segment][stage.scale_code], stage.nested_absmax, p.segments[segment].nested_offset) *
                (1.0F / code_stretch);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float row_scale = __shfl_sync(all_lanes, scale, lane / 4 + 8 * i);
#pragma unroll
            for (int group = 0; group < Groups; ++group)
                sums[group][i] += row_scale * (block_sums[group][0][i] + block_sums[group][1][i]);
        }
    }

    /// Adds the warps' sums in their order, with bias and residual, and stores them.
    __device__ __forceinline__ void finish(int unit, int buffer) {
        auto& partial = s.partial[buffer];
#pragma unroll
        for (int group = 0; group < Groups; ++group) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                partial[warp][group * 4 + lane % 4][lane / 4 + 8 * i] = sums[group][i];
                sums[group][i] = 0.0F;
            }
        }
        if (p.tail > 0) {
            __syncwarp();
            add_tail(unit, partial[warp]);
        }
        __syncthreads();
        for (int i = static_cast<int>(threadIdx.x); i < min(tokens, p.m - first_token) * unit_rows; i += threads) {
            const int in_block = i / unit_rows, in_unit = i % unit_rows;
            const int token = first_token + in_block, row = unit * unit_rows + in_unit;
            float v = 0.0F;
#pragma unroll
            for (int w = 0; w < warps; ++w) v += partial[w][in_block][in_unit];
            if (p.bias != nullptr) v += __bfloat162float(p.bias[row]);
            if (p.residual != nullptr) v += __bfloat162float(p.residual[token * p.residual_stride + row]);
            p.out[token * p.out_stride + row] = __float2bfloat16_rn(v);
        }
    }
};

template <int Groups>
__global__ void __launch_bounds__(threads, 1) nf4_gemm_few_kernel(const __grid_constant__ Problem p, int units) {
    extern __shared__ __align__(1024) uint8_t raw[];
    auto& s = *reinterpret_cast<Shared<Groups>*>(raw);
    const int lane = threadIdx.x % warp_size;
    const int warp = __shfl_sync(all_lanes, static_cast<int>(threadIdx.x / warp_size), 0);  // known to be uniform
    const int steps = (p.k_tiles + warps - 1) / warps;

    // Before the kernel ahead has ended: what does not depend on it.
    Cursor cursor{.unit = static_cast<int>(blockIdx.x), .step = 0};
    cursor.locate(p, units, warp, lane);
    Stage ring[stages] = {};
#pragma unroll
    for (int i = 0; i < stages; ++i) cursor.fetch(p, units, steps, warp, lane, ring[i]);
    for (int i = 0; i < p.count; ++i)
        for (int entry = static_cast<int>(threadIdx.x); entry < 256; entry += threads)
            s.map[i][entry] = __ldg(p.segments[i].nested_map + entry);
    Worker<Groups> worker{p, s, warp, lane, static_cast<int>(blockIdx.y) * Worker<Groups>::tokens};
    worker.enter(static_cast<int>(blockIdx.x));
#if __CUDA_ARCH__ >= 900
    griddepcontrol_wait();
#endif

    uint4 x[Groups][2];
    worker.load_x(warp, x);
    int unit = static_cast<int>(blockIdx.x), step = 0, buffer = 0;
    const auto take = [&](Stage& stage) {  // false: the last
        if (step == 0) {
            worker.enter(unit);
            worker.load_tail(unit);
        }
        const int block = warp + step * warps;
        const bool last = step + 1 == steps;
        uint4 next[Groups][2];
        worker.load_x(last ? warp : block + warps, next);
        worker.multiply(stage, x, block < p.k_tiles);
        cursor.fetch(p, units, steps, warp, lane, stage);
#pragma unroll
        for (int group = 0; group < Groups; ++group) x[group][0] = next[group][0], x[group][1] = next[group][1];
        ++step;
        if (!last) return true;
        worker.finish(unit, buffer);
        buffer ^= 1;
        step = 0;
        unit += static_cast<int>(gridDim.x);
        return unit < units;
    };
    static_assert(stages == 3, "the stages by name, so that they are registers");
    while (take(ring[0]) && take(ring[1]) && take(ring[2])) {
    }
}

template <int Groups>
void launch(const Problem& p, cudaStream_t stream) {
    const int units = p.row_tiles * 2;
    launch_kernel(nf4_gemm_few_kernel<Groups>,
                  {.grid = dim3(static_cast<unsigned>(std::min(units, multiprocessor_count())),
                                static_cast<unsigned>(ceil_div(p.m, 4 * Groups))),
                   .threads = threads,
                   .shared_bytes = sizeof(Shared<Groups>),
                   .stream = stream,
                   .after_previous = built_for_hopper()},
                  p, units);
}

}  // namespace

bool nf4_gemm_few_has(int tokens) {
    return tokens == 4 || tokens == 8;
}

void nf4_gemm_few(const Nf4GemmArgs& args, int tokens, cudaStream_t stream) {
    UNSLOTH_CHECK(nf4_gemm_supported(args) && !args.transposed, "nf4_gemm_few: unsupported arguments");
    UNSLOTH_CHECK(nf4_gemm_few_has(tokens) && ceil_div(args.m, tokens) <= 65535, "nf4_gemm_few: ", args.m,
                  " tokens in blocks of ", tokens);
    if (args.m == 0) return;
    const Problem p = make_problem(args);
    tokens == 4 ? launch<1>(p, stream) : launch<2>(p, stream);
}

}  // namespace unsloth::kernels
