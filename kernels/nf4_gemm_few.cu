// Products by tiled 4-bit weights for a few tokens (a decoding pass of few rows), on any card from sm_80: mma.sync
// with the weights as the A operand, straight from memory to registers.
//
// A block makes 32 rows of the result at a time, its 16 warps share the reduction, two tiles a step, and a step's codes
// are on their way while the one before is worked on. Eight lanes together read 128 bytes of codes (requests for less
// cost as much), which a shuffle then gives to the lanes whose operand they are. A byte of a tile holds the codes of
// rows r and r + 8 at one column: a table in shared memory (an own copy for each lane, so that no banks conflict) gives
// both as a pair of bf16. The pair is taken for two steps of the reduction, and x enters twice, with zeros in the
// other's place: one column of the result for row r, one for row r + 8. So a weight costs one instruction of the table
// and half a load.
//
// What pairs are, and their precision: nf4_gemm.cuh.
//
// Ceiling: the bandwidth of memory; what goes through shared memory (the table's loads, shuffles, x) takes about as
// long.
#include "kernels/nf4_gemm.cuh"
#include "unsloth/core/check.h"

namespace unsloth::kernels {
namespace {

using namespace nf4;

constexpr int warps = 16, threads = warps * warp_size;
constexpr int unit_rows = 32;     // half a row of tiles, two strips of 16
constexpr int step_tiles = 2;     // neighbours along the reduction that a warp takes at once
constexpr int strip_bytes = 512;  // of codes
constexpr int tail_columns = 8;   // of the tail, that a warp takes at a time: 16 bytes of a row
constexpr int step_columns = step_tiles * warps * spec::nf4_tile;
constexpr int x_pad = 64;             // elements between tokens of x
constexpr int pitch = unit_rows + 8;  // floats between tokens of partial sums: four tokens' eight rows in other banks

__host__ __device__ constexpr int steps_of(int k_tiles) {
    return (k_tiles + step_tiles * warps - 1) / (step_tiles * warps);
}

template <int Groups>
struct Shared {
    uint8_t table[pair_table_bytes];
    float map[nf4_gemm_most_weights][256];
    float partial[2][warps][4 * Groups][pitch];
    __nv_bfloat16 x[];  // [tokens, columns of a chunk + x_pad]
};

/// What a warp takes of 32 rows of its tiles of a step.
struct Stage {
    uint4 codes[step_tiles][2];       // of the two strips: 16 columns of rows g and g + 8
    uint32_t scale_code[step_tiles];  // of row `lane`
    float nested_absmax[step_tiles];
};

/// The address of a warp's next stage: tiles 2 warp, 2 warp + 1, then two more 32 tiles further, ... of a unit's
/// reduction, then of the next unit's. A warp has as many steps as the others, the last may be none.
struct Cursor {
    const uint8_t* codes;   // of the lane
    const uint8_t* scales;  // of row `lane`
    const float* nested_absmax;
    uint32_t nested_block;  // of row `lane`
    int unit, step;

    __device__ __forceinline__ void locate(const Problem& p, int units, int warp, int lane) {
        if (unit >= units) return;
        const int row_tile = unit / 2, lower = unit % 2, segment = segment_of(p, row_tile);
        const int n = row_tile - p.segments[segment].first;
        const uint8_t* tile =
            p.segments[segment].tiles + (int64_t{n} * p.k_tiles + step_tiles * warp) * spec::nf4_tile_bytes;
        codes = tile + lower * 2 * strip_bytes + lane * 16;
        scales = tile + spec::nf4_tile_code_bytes + lower * unit_rows + lane;
        nested_absmax = p.segments[segment].nested_absmax;
        nested_block =
            static_cast<uint32_t>((n * spec::nf4_tile + lower * unit_rows + lane) * p.k_tiles + step_tiles * warp);
    }
    __device__ __forceinline__ void fetch(const Problem& p, int units, int steps, int warp, int lane, Stage& to) {
        const int tile = step_tiles * (warp + step * warps);
#pragma unroll
        for (int i = 0; i < step_tiles; ++i) {
            if (unit >= units || tile + i >= p.k_tiles) continue;
            to.codes[i][0] = load_once_16(codes + i * spec::nf4_tile_bytes);
            to.codes[i][1] = load_once_16(codes + i * spec::nf4_tile_bytes + strip_bytes);
            to.scale_code[i] = __ldg(scales + i * spec::nf4_tile_bytes);
            to.nested_absmax[i] = __ldg(nested_absmax + (nested_block + i) / spec::quant4_nested_block);
        }
        constexpr int tiles = step_tiles * warps;
        codes += tiles * spec::nf4_tile_bytes, scales += tiles * spec::nf4_tile_bytes;
        nested_block += tiles;
        if (++step < steps) return;
        step = 0;
        unit += static_cast<int>(gridDim.x);
        locate(p, units, warp, lane);
    }
};

template <int Groups>
struct Worker {
    static constexpr int tokens = 4 * Groups;

    const Problem& p;
    Shared<Groups>& s;
    const int warp, lane;
    const int first_token, count;  // tokens of the block
    const int chunk_steps;         // whose columns of x are in shared memory at a time
    const uint32_t lane_place = static_cast<uint32_t>(lane) * 4;
    // x's value in the low or the high half of an operand: of the lower row of a pair, or of the other
    const uint32_t even_place = lane / 4 % 2 == 0 ? 0x4410 : 0x1044, odd_place = lane / 4 % 2 == 0 ? 0x4432 : 0x3244;
    int segment = -1;
    float sums[Groups][4] = {};
    uint4 tail_weights{};
    float tail_inputs[Groups] = {};
    __nv_bfloat16 bias{}, residual{};

    /// The warp's columns of x of steps [first, first + chunk_steps) to shared memory.
    __device__ __forceinline__ void stage_x(int first) const {
        constexpr int packs = step_tiles * spec::nf4_tile / 8;
        const int in_step = lane % packs;
        for (int step = 0; step < chunk_steps; ++step) {
            const int tile = step_tiles * (warp + (first + step) * warps);
            if (tile + in_step / (packs / step_tiles) >= p.k_tiles) continue;
            for (int token = lane / packs; token < count; token += warp_size / packs)
                cp_async_16(
                    shared_address(s.x + token * x_pitch() + step_tiles * (warp + step * warps) * spec::nf4_tile) +
                        in_step * 16,
                    p.x + (first_token + token) * p.x_stride + tile * spec::nf4_tile + in_step * 8);
        }
        cp_async_commit_group();
        cp_async_wait_group<0>();
        __syncwarp();
    }
    __device__ __forceinline__ int x_pitch() const { return chunk_steps * step_columns + x_pad; }
    /// x's 16 values of the lane's token and sub-block. Columns of the result whose token there is not are not stored.
    __device__ __forceinline__ void load_x(int tile_in_chunk, uint4 (&x)[Groups][2]) const {
#pragma unroll
        for (int group = 0; group < Groups; ++group) {
            const auto* from = reinterpret_cast<const uint4*>(s.x + min(group * 4 + lane / 8, count - 1) * x_pitch() +
                                                              tile_in_chunk * spec::nf4_tile + lane % 4 * 16);
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

    /// The warp's columns of the tail, from `column` on: its weight with a row a lane, and u with a token every eight
    /// lanes, a column each; 0 where the tail has ended.
    __device__ __forceinline__ void load_tail(int unit, int column) {
        tail_weights = {};
        const int first = tail_begin(p, unit / 2) + column;
        const bool there = column < p.tail && first < p.all_tail;
        if (there) tail_weights = load_tail_weights(p.tail_weight + (unit * unit_rows + lane) * p.tail_stride + first);
        const __nv_bfloat16* const u = p.x + p.k_tiles * spec::nf4_tile + first + lane % tail_columns;
        static_assert(tail_columns * 4 == warp_size, "four tokens a register");
#pragma unroll
        for (int group = 0; group < Groups; ++group) {
            const int token = group * 4 + lane / tail_columns;
            tail_inputs[group] =
                there && token < count ? __bfloat162float(u[(first_token + token) * p.x_stride]) : 0.0F;
        }
    }
    __device__ __forceinline__ uint4 load_tail_weights(const __nv_bfloat16* from) const {
        if (p.tail_is_aligned) return *reinterpret_cast<const uint4*>(from);
        const auto* const pairs = reinterpret_cast<const uint32_t*>(from);
        return {pairs[0], pairs[1], pairs[2], pairs[3]};
    }
    /// Adds the warp's columns of the tail to its partial sums; the first ones are loaded.
    __device__ __forceinline__ void add_tail(int unit, float (&to)[tokens][pitch]) {
        for (int column = warp * tail_columns; column < p.tail; column += warps * tail_columns) {
            if (column >= warps * tail_columns) load_tail(unit, column);
            const uint32_t pairs[4] = {tail_weights.x, tail_weights.y, tail_weights.z, tail_weights.w};
#pragma unroll
            for (int token = 0; token < tokens; ++token) {
                if (token >= count) break;
                float sum = 0.0F;
#pragma unroll
                for (int c = 0; c < tail_columns; ++c) {
                    const float w = __uint_as_float(c % 2 == 0 ? pairs[c / 2] << 16 : pairs[c / 2] & 0xFFFF0000U);
                    sum += w * __shfl_sync(all_lanes, tail_inputs[token / 4], token % 4 * tail_columns + c);
                }
                to[token][lane] += sum;
            }
        }
    }

    __device__ __forceinline__ uint32_t pair(uint32_t word, int byte) const {
        return pair_of(s.table, lane_place, word, byte);
    }

    /// The step's tile i.
    __device__ __forceinline__ void multiply(const Stage& stage, int i, int tile_in_chunk) {
        uint4 x[Groups][2];
        load_x(tile_in_chunk, x);
        constexpr int chains = 2 / Groups;  // of products, that do not wait for each other
        float block_sums[Groups][chains][4] = {};
        uint32_t words[2][4];
#pragma unroll
        for (int strip = 0; strip < 2; ++strip) {
            const uint4& codes = stage.codes[i][strip];
            const uint32_t loaded[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
            for (int word = 0; word < 4; ++word)
                words[strip][word] = __shfl_sync(all_lanes, loaded[word], lane % 4 * 8 + lane / 4);
        }
#pragma unroll
        for (int q = 0; q < 8; ++q) {  // columns q and q + 8 of the lane's 16
            const int word = q / 2, byte = q % 2 * 2;
            const uint32_t a[4] = {pair(words[0][word], byte), pair(words[1][word], byte),
                                   pair(words[0][word], byte + 1), pair(words[1][word], byte + 1)};
#pragma unroll
            for (int group = 0; group < Groups; ++group) {
                const uint32_t low[4] = {x[group][0].x, x[group][0].y, x[group][0].z, x[group][0].w},
                               high[4] = {x[group][1].x, x[group][1].y, x[group][1].z, x[group][1].w};
                const uint32_t place = q % 2 == 0 ? even_place : odd_place;
                mma_m16n8k16<__nv_bfloat16>(block_sums[group][q % chains], a, __byte_perm(low[word], 0, place),
                                            __byte_perm(high[word], 0, place));
            }
        }
        const float scale =
            nf4_scale(s.map[segment][stage.scale_code[i]], stage.nested_absmax[i], p.segments[segment].nested_offset) *
            (1.0F / code_stretch);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float row_scale = __shfl_sync(all_lanes, scale, lane / 4 + 8 * j);
#pragma unroll
            for (int group = 0; group < Groups; ++group)
                sums[group][j] += row_scale * (Groups == 1 ? block_sums[group][0][j] + block_sums[group][chains - 1][j]
                                                           : block_sums[group][0][j]);
        }
    }

    /// Ahead: what the thread adds to its value of a unit.
    __device__ __forceinline__ void load_addends(int unit) {
        const int token = first_token + warp, row = unit * unit_rows + lane;
        if (warp >= count) return;
        if (p.bias != nullptr) bias = p.bias[row];
        if (p.residual != nullptr) residual = p.residual[token * p.residual_stride + row];
    }

    /// Adds the warps' sums in their order and the addend, and stores them.
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
        static_assert(tokens <= warps, "a warp a token");
        if (warp >= count) return;
        float v = __bfloat162float(bias) + __bfloat162float(residual);
#pragma unroll
        for (int w = 0; w < warps; ++w) v += partial[w][warp][lane];
        p.out[(first_token + warp) * p.out_stride + unit * unit_rows + lane] = __float2bfloat16_rn(v);
    }
};

template <int Groups>
__global__ void __launch_bounds__(threads, 1)
    nf4_gemm_few_kernel(const __grid_constant__ Problem p, int units, int block_tokens, int chunk_steps) {
    launch_dependents(p.m);
    extern __shared__ __align__(1024) uint8_t raw[];
    auto& s = *reinterpret_cast<Shared<Groups>*>(raw);
    const int lane = threadIdx.x % warp_size;
    const int warp = __shfl_sync(all_lanes, static_cast<int>(threadIdx.x / warp_size), 0);  // known to be uniform
    const int steps = steps_of(p.k_tiles);

    // Before the kernel ahead has ended: what does not depend on it.
    Cursor cursor{.unit = static_cast<int>(blockIdx.x), .step = 0};
    cursor.locate(p, units, warp, lane);
    Stage even, odd;
    cursor.fetch(p, units, steps, warp, lane, even);
    cursor.fetch(p, units, steps, warp, lane, odd);
    for (int i = 0; i < p.count; ++i)
        for (int entry = static_cast<int>(threadIdx.x); entry < 256; entry += threads)
            s.map[i][entry] = __ldg(p.segments[i].nested_map + entry);
    const int first_token = static_cast<int>(blockIdx.y) * block_tokens;
    Worker<Groups> worker{p, s, warp, lane, first_token, min(block_tokens, p.m - first_token), chunk_steps};
    worker.enter(static_cast<int>(blockIdx.x));
    wait_for_prerequisites();

    int unit = static_cast<int>(blockIdx.x), step = 0, buffer = 0;
    bool fetches = false, staged = false;  // at first both stages are there
    // A warp waits for all its loads when it waits for one (they count at one scoreboard): so the next step's are
    // issued before a step is worked on, and x comes from shared memory.
    const auto take = [&](Stage& stage, Stage& other) {  // false: the last
        if (fetches) cursor.fetch(p, units, steps, warp, lane, other);
        fetches = true;
        if (step == 0) {
            worker.enter(unit);
            worker.load_addends(unit);
            if (p.tail > 0) worker.load_tail(unit, warp * tail_columns);
        }
        if (step % chunk_steps == 0 && (!staged || chunk_steps < steps)) {
            __syncwarp();  // the other lanes have read what was there
            worker.stage_x(step);
            staged = true;
        }
        const int first = step_tiles * (warp + step * warps),
                  in_chunk = step_tiles * (warp + step % chunk_steps * warps);
#pragma unroll
        for (int i = 0; i < step_tiles; ++i)
            if (first + i < p.k_tiles) worker.multiply(stage, i, in_chunk + i);
        if (++step < steps) return true;
        worker.finish(unit, buffer);
        buffer ^= 1;
        step = 0;
        unit += static_cast<int>(gridDim.x);
        return unit < units;
    };
    while (take(even, odd) && take(odd, even)) {
    }
}

/// False: the card's blocks have too little shared memory.
template <int Groups>
bool launch(const Problem& p, cudaStream_t stream) {
    const int units = p.row_tiles * 2, steps = steps_of(p.k_tiles);
    int tokens = std::min(p.m, 4 * Groups), chunk_steps = steps;
    const auto bytes = [&] {
        return sizeof(Shared<Groups>) + sizeof(__nv_bfloat16) * tokens * (chunk_steps * step_columns + x_pad);
    };
    while (bytes() > most_shared_bytes())
        if (chunk_steps > 1)
            --chunk_steps;
        else if (--tokens == 0)
            return false;
    launch_kernel(nf4_gemm_few_kernel<Groups>,
                  {.grid = dim3(static_cast<unsigned>(std::min(units, multiprocessor_count())),
                                static_cast<unsigned>(ceil_div(p.m, tokens))),
                   .threads = threads,
                   .shared_bytes = bytes(),
                   .stream = stream,
                   .after_previous = true},
                  p, units, tokens, chunk_steps);
    return true;
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
    const bool launched = (tokens == 8 && launch<2>(p, stream)) || launch<1>(p, stream);
    UNSLOTH_CHECK(launched, "nf4_gemm_few: the device's blocks have too little shared memory");
}

}  // namespace unsloth::kernels
