// v = dy·sB and dB += s·dyᵀ·u in one read of dy. A block owns a strip of dy's columns and walks over its tokens with the
// strip's dB in registers. Bulk copies bring the tiles, one warp issues them; the other warps each own a part of the strip's
// columns and never wait for one another: their shares of v go through a small buffer to one more warp, which adds them and
// writes the strip's share. A cluster of blocks with different tokens adds its dB through shared memory. A second kernel adds
// the strips' shares of v, and dB over further splits of the tokens. All orders are fixed.
#include "kernels/lora_gemm.h"
#include "kernels/lora_mma.cuh"
#include "unsloth/core/error.h"

namespace unsloth::kernels {
namespace lora {
namespace {

/// One projection: its columns of dy, its columns of u and v, its gradient.
struct DyRange {
    int begin, columns, thin_begin, thin_columns, first_strip, rank;
    float scale;
    float* db;
};

struct DyParams {
    const void* dy;
    const void* u;  ///< [tokens, thin], contiguous
    const void* b;
    int64_t dy_stride, b_stride, columns;
    int tokens, thin, cluster, ranges, stages, drop_first;
    DyRange range[most_lora_parts];
    int strips;
    float* v_parts;   ///< [steps, strips, step_tokens, kThin]: what is added lies together
    float* db_parts;  ///< [splits, columns, kThin]; nullptr: straight into the gradient
};

constexpr int step_tokens = 16, most_stages = 12;

template <int kWarps_, int kTiles_, int kBlocks_>
struct DyTile {
    static constexpr int kWarps = kWarps_, kTiles = kTiles_;
    static constexpr int kBlocks = kBlocks_;  ///< that shall fit a multiprocessor
    static constexpr int kColumns = kWarps * kTiles * 16, kThreads = (kWarps + 2) * 32;
};

template <class Tile, int kThin>
struct DyShared {
    static constexpr int kPitch = Tile::kColumns + 8;  // an odd number of 16-byte units: no bank conflicts
    static constexpr int kDyBytes = step_tokens * kPitch * 2;
    static constexpr int kPartPitch = kThin + 8;
    static constexpr int kPartFloats = step_tokens * kPartPitch;  // one warp's share of v
    static constexpr int kPartBytes = 2 * Tile::kWarps * kPartFloats * 4;
    static constexpr int kSumPitch = kThin + 8;
    static constexpr int kSumBytes = Tile::kColumns * kSumPitch * 4;
    static constexpr int kBarrierBytes = 8 * (2 * most_stages + 4);

    static int stage_bytes(int thin) { return kDyBytes + step_tokens * thin * 2; }
    static int stages(int thin) {
        const int budget = 227 * 1024 / Tile::kBlocks - 1024 - kBarrierBytes - kPartBytes;
        return std::min(most_stages, std::max(2, budget / stage_bytes(thin)));
    }
    static int bytes(int thin) {
        return kBarrierBytes + std::max(stages(thin) * stage_bytes(thin) + kPartBytes, kSumBytes);
    }
};

template <class T, class Tile, int kThin>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks) dy_kernel(const __grid_constant__ DyParams p) {
    using Shared = DyShared<Tile, kThin>;
    constexpr int kColumns = Tile::kColumns, kTiles = Tile::kTiles, kPairs = kThin / 16;
    extern __shared__ __align__(128) unsigned char memory[];
    const uint32_t full = shared_address(memory), empty = full + 8 * most_stages, v_full = empty + 8 * most_stages,
                   v_empty = v_full + 16;
    unsigned char* const data = memory + Shared::kBarrierBytes;
    const uint32_t base = shared_address(data);
    const int stage_bytes = Shared::kDyBytes + step_tokens * p.thin * 2;
    float* const v_shared = reinterpret_cast<float*>(data + p.stages * stage_bytes);
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;

    const int strip = static_cast<int>(blockIdx.y);
    int which = 0;
    while (which + 1 < p.ranges && strip >= p.range[which + 1].first_strip) ++which;
    const DyRange range = p.range[which];
    const int column_begin = (strip - range.first_strip) * kColumns, columns = min(kColumns, range.columns - column_begin);
    const int all_steps = (p.tokens + step_tokens - 1) / step_tokens, blocks = static_cast<int>(gridDim.x);
    const int share = (all_steps + blocks - 1) / blocks;
    const int first = min(static_cast<int>(blockIdx.x) * share, all_steps), steps = min(share, all_steps - first);

#if UNSLOTH_HAS_CLUSTERS
    asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");  // the sums' blocks may come and wait
#endif
    if (thread == 0) {
        for (int s = 0; s < p.stages; ++s) {
            init_barrier(full + 8 * s, 1);
            init_barrier(empty + 8 * s, Tile::kWarps);
        }
        for (int s = 0; s < 2; ++s) {
            init_barrier(v_full + 8 * s, Tile::kWarps);
            init_barrier(v_empty + 8 * s, 1);
        }
        publish_barriers();
    }
    __syncthreads();

    float sum[kTiles][kPairs * 2][4] = {};
    if (warp == Tile::kWarps) {  // brings the tiles
        const T* dy = static_cast<const T*>(p.dy) + range.begin + column_begin;
        const uint64_t policy = cache_policy(p.drop_first != 0), keep = cache_policy(false);
        for (int step = 0, slot = 0, phase = 0; step < steps; ++step) {
            if (step >= p.stages) wait(empty + 8 * slot, phase ^ 1);
            const int token_begin = (first + step) * step_tokens, tokens = min(step_tokens, p.tokens - token_begin);
            const uint32_t stage = base + slot * stage_bytes;
            if (tokens < step_tokens || columns < kColumns) {  // what no copy fills must not be NaN
                uint32_t* words = reinterpret_cast<uint32_t*>(data + slot * stage_bytes);
                for (int row = 0; row < step_tokens; ++row)
                    for (int i = (row < tokens ? columns / 2 : 0) + lane; i < kColumns / 2; i += 32)
                        words[row * (Shared::kPitch / 2) + i] = 0;
                for (int i = tokens * p.thin / 2 + lane; i < step_tokens * p.thin / 2; i += 32)
                    words[Shared::kDyBytes / 4 + i] = 0;
            }
            __syncwarp();
            if (lane == 0) arrive_expecting(full + 8 * slot, tokens * (columns + p.thin) * 2);
            __syncwarp();
            if (lane < tokens)
                copy_bulk(stage + lane * (Shared::kPitch * 2), dy + (token_begin + lane) * p.dy_stride, columns * 2,
                          full + 8 * slot, policy);
            if (lane == step_tokens)
                copy_bulk(stage + Shared::kDyBytes, static_cast<const T*>(p.u) + static_cast<int64_t>(token_begin) * p.thin,
                          tokens * p.thin * 2, full + 8 * slot, keep);
            if (++slot == p.stages) slot = 0, phase ^= 1;
        }
    } else if (warp == Tile::kWarps + 1) {  // adds the warps' shares of v
        if (p.db_parts == nullptr) {  // the gradient will be added to: have it near
            const int bytes = columns * range.rank * 4, part = (bytes + p.cluster - 1) / p.cluster;
            const char* gradient = reinterpret_cast<const char*>(range.db + static_cast<int64_t>(column_begin) * range.rank);
            const int begin = static_cast<int>(blockIdx.x) % p.cluster * part, end = min(begin + part, bytes);
            for (int at = begin + lane * 128; at < end; at += 32 * 128) prefetch_l2(gradient + at);
        }
        constexpr int kFloats = step_tokens * kThin;
        float* out = p.v_parts + (static_cast<int64_t>(first) * p.strips + strip) * kFloats;
        for (int step = 0; step < steps; ++step) {
            const int buffer = step % 2;
            wait(v_full + 8 * buffer, step / 2 % 2);
            const float* parts = v_shared + buffer * (Tile::kWarps * Shared::kPartFloats);
#pragma unroll
            for (int i = lane; i < kFloats / 4; i += 32) {
                const int token = i / (kThin / 4), column = i % (kThin / 4) * 4;
                const float* at = parts + token * Shared::kPartPitch + column;
                float4 total = *reinterpret_cast<const float4*>(at);
#pragma unroll
                for (int w = 1; w < Tile::kWarps; ++w)
                    add(total, *reinterpret_cast<const float4*>(at + w * Shared::kPartFloats));
                *reinterpret_cast<float4*>(out + i * 4) = total;
            }
            __syncwarp();
            if (lane == 0) arrive(v_empty + 8 * buffer);
            out += static_cast<int64_t>(p.strips) * kFloats;
        }
    } else {
        // This warp's rows of sB stay in registers.
        uint32_t b[kTiles][kPairs * 2][2];
        const uint16_t* from = static_cast<const uint16_t*>(p.b) + (range.begin + column_begin) * p.b_stride + range.thin_begin;
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
#pragma unroll
            for (int n = 0; n < kPairs * 2; ++n) {
                const int column = n * 8 + lane / 4;
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int row = (warp * kTiles + m) * 16 + half * 8 + lane % 4 * 2;
                    const bool inside = column < range.thin_columns;
                    const uint32_t low = inside && row < columns ? from[row * p.b_stride + column] : 0;
                    const uint32_t high = inside && row + 1 < columns ? from[(row + 1) * p.b_stride + column] : 0;
                    b[m][n][half] = low | high << 16;
                }
            }
        }
        const uint32_t x_at = ((lane % 16) * Shared::kPitch + warp * kTiles * 16 + lane / 16 * 8) * 2;
        const uint32_t x_transposed_at =
            ((lane % 8 + lane / 16 * 8) * Shared::kPitch + warp * kTiles * 16 + lane / 8 % 2 * 8) * 2;
        const uint32_t u_at = Shared::kDyBytes + ((lane % 16) * p.thin + range.thin_begin) * 2;
        for (int step = 0, slot = 0, phase = 0; step < steps; ++step) {
            const uint32_t stage = base + slot * stage_bytes;
            wait(full + 8 * slot, phase);
            uint32_t u[kPairs][4];
#pragma unroll
            for (int n = 0; n < kPairs; ++n) {
                // Columns of other projections may follow: read the last own ones twice rather than past the row's end.
                const int column = n * 16 + lane / 16 * 8;
                load_tiles_4_transposed(u[n], stage + u_at + min(column, range.thin_columns - 8) * 2);
            }
            float v[kPairs * 2][4] = {};
#pragma unroll
            for (int m = 0; m < kTiles; ++m) {
                uint32_t a[4];
                load_tiles_4_transposed(a, stage + x_transposed_at + m * 32);
#pragma unroll
                for (int n = 0; n < kPairs; ++n) {
                    multiply<T>(sum[m][2 * n], a, u[n][0], u[n][1]);
                    multiply<T>(sum[m][2 * n + 1], a, u[n][2], u[n][3]);
                }
                load_tiles_4(a, stage + x_at + m * 32);
#pragma unroll
                for (int n = 0; n < kPairs * 2; ++n) multiply<T>(v[n], a, b[m][n][0], b[m][n][1]);
            }
            __syncwarp();
            if (lane == 0) arrive(empty + 8 * slot);
            if (++slot == p.stages) slot = 0, phase ^= 1;

            const int buffer = step % 2;
            if (step >= 2) wait(v_empty + 8 * buffer, step / 2 % 2 ^ 1);
            float* part = v_shared + (buffer * Tile::kWarps + warp) * Shared::kPartFloats + lane / 4 * Shared::kPartPitch + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < kPairs * 2; ++n) {
                *reinterpret_cast<float2*>(part + n * 8) = make_float2(v[n][0], v[n][1]);
                *reinterpret_cast<float2*>(part + n * 8 + 8 * Shared::kPartPitch) = make_float2(v[n][2], v[n][3]);
            }
            __syncwarp();
            if (lane == 0) arrive(v_full + 8 * buffer);
        }
    }
    __syncthreads();

    float* parts = p.db_parts;
    if (parts != nullptr) parts += (static_cast<int64_t>(blockIdx.x) / p.cluster * p.columns + range.begin + column_begin) * kThin;
    if (parts != nullptr && p.cluster == 1) {  // straight from the registers
        if (warp >= Tile::kWarps) return;
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int column = (warp * kTiles + m) * 16 + half * 8 + lane / 4;
                if (column >= columns) continue;
#pragma unroll
                for (int n = 0; n < kPairs * 2; ++n)
                    *reinterpret_cast<float2*>(parts + static_cast<int64_t>(column) * kThin + n * 8 + lane % 4 * 2) =
                        make_float2(sum[m][n][2 * half], sum[m][n][2 * half + 1]);
            }
        }
        return;
    }

    // The stages' memory now holds dB as [column][thin].
    constexpr int kPitch = Shared::kSumPitch;
    if (warp < Tile::kWarps) {
        float* sums = reinterpret_cast<float*>(data);
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
            float* to = sums + ((warp * kTiles + m) * 16 + lane / 4) * kPitch + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < kPairs * 2; ++n) {
                *reinterpret_cast<float2*>(to + n * 8) = make_float2(sum[m][n][0], sum[m][n][1]);
                *reinterpret_cast<float2*>(to + n * 8 + 8 * kPitch) = make_float2(sum[m][n][2], sum[m][n][3]);
            }
        }
    }
    __syncthreads();
    cluster_barrier();
    const int rank = static_cast<int>(blockIdx.x) % p.cluster;
    for (int i = rank * Tile::kThreads + thread; i < kThin * kColumns / 4; i += p.cluster * Tile::kThreads) {
        const int column = i / (kThin / 4), c = i % (kThin / 4) * 4;
        if (column >= columns || c >= range.rank) continue;
        const float4 total = cluster_sum(base + (column * kPitch + c) * 4, p.cluster);
        if (parts != nullptr) {
            *reinterpret_cast<float4*>(parts + static_cast<int64_t>(column) * kThin + c) = total;
        } else {
            accumulate(range.db + static_cast<int64_t>(column_begin + column) * range.rank + c, total, range.scale, range.rank - c);
        }
    }
    cluster_barrier();  // nobody leaves while others read its sums
}

// --- the sums over strips (v) and over splits of the tokens (dB) --------------------------------------------------------

struct FinishParams {
    const float* v_parts;
    const float* db_parts;
    void* v;
    int64_t v_stride, columns;
    int tokens, ranges, splits, strips;
    DyRange range[most_lora_parts];
    int range_strips[most_lora_parts];
};

constexpr int finish_threads = 256;
constexpr int v_lanes = 4;   ///< that share eight columns of a token's v
constexpr int db_lanes = 8;  ///< that share four columns of a row of dB

template <class T, int kThin>
__device__ __forceinline__ void finish_v(const FinishParams& p, int which, int64_t index) {
    const DyRange range = p.range[which];
    const int groups = range.thin_columns / 8;
    const int lane = static_cast<int>(index % v_lanes), column = static_cast<int>(index / v_lanes % groups) * 8;
    const int64_t token = index / v_lanes / groups;
    constexpr int kFloats = step_tokens * kThin;
    float4 low = {0, 0, 0, 0}, high = {0, 0, 0, 0};
    if (token < p.tokens) {
        const float* from = p.v_parts + (token / step_tokens * p.strips + range.first_strip) * kFloats +
                            token % step_tokens * kThin + column;
#pragma unroll 4
        for (int s = lane; s < p.range_strips[which]; s += v_lanes) {
            add(low, *reinterpret_cast<const float4*>(from + s * kFloats));
            add(high, *reinterpret_cast<const float4*>(from + s * kFloats + 4));
        }
    }
    const float total[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    Pack<T, 8> result;
#pragma unroll
    for (int i = 0; i < 8; ++i) result.v[i] = from_float<T>(group_sum<v_lanes>(total[i]));
    if (token < p.tokens && lane == 0)
        store_pack(static_cast<T*>(p.v) + token * p.v_stride + range.thin_begin + column, result);
}

template <int kThin>
__device__ __forceinline__ void finish_db(const FinishParams& p, int which, int64_t index) {
    const DyRange range = p.range[which];
    constexpr int kGroups = kThin / 4;
    const int lane = static_cast<int>(index % db_lanes), c = static_cast<int>(index / db_lanes % kGroups) * 4;
    const int64_t column = index / db_lanes / kGroups, distance = p.columns * kThin;
    const bool inside = column < range.columns && c < range.rank;
    float4 total = {0, 0, 0, 0};
    if (inside) {
        const float* from = p.db_parts + (range.begin + column) * kThin + c;
#pragma unroll 4
        for (int s = lane; s < p.splits; s += db_lanes) add(total, *reinterpret_cast<const float4*>(from + s * distance));
    }
    total.x = group_sum<db_lanes>(total.x), total.y = group_sum<db_lanes>(total.y);
    total.z = group_sum<db_lanes>(total.z), total.w = group_sum<db_lanes>(total.w);
    if (inside && lane == 0) accumulate(range.db + column * range.rank + c, total, range.scale, range.rank - c);
}

template <class T, int kThin>
__global__ void __launch_bounds__(finish_threads) finish_kernel(const __grid_constant__ FinishParams p) {
#if UNSLOTH_HAS_CLUSTERS
    asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
    const int64_t index = static_cast<int64_t>(blockIdx.x) * finish_threads + threadIdx.x;
    const int row = static_cast<int>(blockIdx.y);
    if (row < p.ranges) {
        finish_v<T, kThin>(p, row, index);
    } else {
        finish_db<kThin>(p, row - p.ranges, index);
    }
}

template <class T, int kThin>
void finish(const DyParams& p, int splits, int strip_columns, Matrix v, cudaStream_t stream) {
    FinishParams f = {p.v_parts, p.db_parts, v.data, v.stride, p.columns, p.tokens, p.ranges, splits, p.strips, {}, {}};
    int64_t most = 0;
    for (int i = 0; i < p.ranges; ++i) {
        f.range[i] = p.range[i];
        f.range_strips[i] = static_cast<int>(ceil_div(p.range[i].columns, strip_columns));
        most = std::max(most, int64_t{p.tokens} * (p.range[i].thin_columns / 8) * v_lanes);
        if (splits > 1) most = std::max(most, int64_t{p.range[i].columns} * (kThin / 4) * db_lanes);
    }
    const dim3 grid(static_cast<unsigned>(ceil_div(most, finish_threads)),
                    static_cast<unsigned>(splits > 1 ? 2 * p.ranges : p.ranges));
    launch(&finish_kernel<T, kThin>, grid, finish_threads, 0, 1, f, stream, /*after_previous=*/true);
}

// --- launches -----------------------------------------------------------------------------------------------------------

template <class T, class Tile, int kThin>
void run_tile(DyParams p, const LoraPlan& plan, Matrix v, cudaStream_t stream) {
    using Shared = DyShared<Tile, kThin>;
    p.strips = 0;
    for (int i = 0; i < p.ranges; ++i) {
        p.range[i].first_strip = p.strips;
        p.strips += static_cast<int>(ceil_div(p.range[i].columns, Tile::kColumns));
    }
    p.stages = Shared::stages(p.thin);
    const dim3 grid(static_cast<unsigned>(plan.cluster * plan.splits), static_cast<unsigned>(p.strips));
    launch(&dy_kernel<T, Tile, kThin>, grid, Tile::kThreads, static_cast<std::size_t>(Shared::bytes(p.thin)), plan.cluster, p,
           stream);
    finish<T, kThin>(p, plan.splits, Tile::kColumns, v, stream);
}

template <class T>
void run_type(const DyParams& p, const LoraPlan& plan, int thin, Matrix v, cudaStream_t stream) {
    if (thin == 16) {
        switch (plan.tile) {
            case 0: return run_tile<T, DyTile<8, 2, 2>, 16>(p, plan, v, stream);
            case 1: return run_tile<T, DyTile<8, 4, 2>, 16>(p, plan, v, stream);
            case 2: return run_tile<T, DyTile<16, 4, 1>, 16>(p, plan, v, stream);
            case 3: return run_tile<T, DyTile<8, 8, 1>, 16>(p, plan, v, stream);
            default: break;
        }
    } else if (thin == 32) {
        if (plan.tile == 0) return run_tile<T, DyTile<8, 2, 2>, 32>(p, plan, v, stream);
        if (plan.tile == 1) return run_tile<T, DyTile<8, 4, 1>, 32>(p, plan, v, stream);
    } else if (plan.tile == 0) {
        return run_tile<T, DyTile<8, 2, 1>, 64>(p, plan, v, stream);
    }
    UNSLOTH_CHECK(false, "lora_v_db: no tile ", plan.tile, " for ", thin, " columns");
}

int strip_columns(int tile) {
    return std::min(256 << tile, 1024);
}

int64_t padded_rank(const LoraBackward& g) {
    int64_t widest = 0;
    for (int i = 0; i < g.part_count; ++i) widest = std::max(widest, g.parts[i].r);
    return widest <= 16 ? 16 : widest <= 32 ? 32 : 64;
}

/// Floats of workspace: a token's share of v, and dB's.
std::pair<int64_t, int64_t> workspace_floats(const LoraBackward& g, const LoraPlan& plan) {
    int64_t strips = 0;
    for (int i = 0; i < g.part_count; ++i)
        if (g.parts[i].r > 0) strips += ceil_div(g.parts[i].n, strip_columns(plan.tile));
    return {strips * padded_rank(g), plan.splits > 1 ? plan.splits * g.n * padded_rank(g) : 0};
}

constexpr int64_t least_run = 256;                    ///< tokens that are taken at a time at least
constexpr int64_t kept_bytes = int64_t{24} << 20;     ///< of dy that the second-level cache may hold on to

}  // namespace
}  // namespace lora

LoraWorkspace lora_workspace(const LoraBackward& g, const LoraPlan& plan) {
    const auto [token, fixed] = lora::workspace_floats(g, plan);
    const int64_t tokens = round_up(g.tokens, lora::step_tokens);
    return {4 * (tokens * token + fixed), 4 * (std::min(tokens, lora::least_run) * token + fixed)};
}

void lora_v_db(const LoraBackward& g, const LoraPlan& plan, void* workspace, int64_t workspace_bytes, cudaStream_t stream) {
    UNSLOTH_CHECK(lora_supports(g, 9), "lora_v_db: unsupported operands");
    const LoraWorkspace need = lora_workspace(g, plan);
    UNSLOTH_CHECK(workspace_bytes >= need.least, "lora_v_db: ", workspace_bytes, " bytes of workspace, ", need.least, " needed");
    lora::DyParams p = {};
    p.b = g.b.data, p.b_stride = g.b.stride, p.dy_stride = g.dy.stride, p.columns = g.n;
    p.thin = static_cast<int>(g.r), p.cluster = plan.cluster;
    for (int i = 0; i < g.part_count; ++i) {
        const LoraPart& part = g.parts[i];
        if (part.r == 0) continue;
        p.range[p.ranges++] = {static_cast<int>(part.n_begin), static_cast<int>(part.n), static_cast<int>(part.r_begin),
                               static_cast<int>(part.r), 0, static_cast<int>(part.rank), part.scale, part.db};
    }
    if (g.tokens == 0 || p.ranges == 0) return;
    const auto [token, fixed] = lora::workspace_floats(g, plan);
    if (plan.splits > 1) p.db_parts = static_cast<float*>(workspace);
    p.v_parts = static_cast<float*>(workspace) + fixed;
    // Runs of equal length that fit the workspace.
    const int64_t fit = (workspace_bytes / 4 - fixed) / token / lora::step_tokens * lora::step_tokens;
    const int64_t run_tokens = round_up(ceil_div(g.tokens, ceil_div(g.tokens, fit)), lora::step_tokens);
    const int64_t element = static_cast<int64_t>(size_of(g.type));
    p.drop_first = g.tokens * g.n * element > lora::kept_bytes;
    const int thin = static_cast<int>(lora::padded_rank(g));
    for (int64_t begin = 0; begin < g.tokens; begin += run_tokens) {
        p.tokens = static_cast<int>(std::min(run_tokens, g.tokens - begin));
        p.dy = static_cast<const char*>(g.dy.data) + begin * g.dy.stride * element;
        p.u = static_cast<const char*>(g.u) + begin * g.r * element;
        const Matrix v = {static_cast<char*>(g.v.data) + begin * g.v.stride * element, g.v.stride};
        if (g.type == DType::bf16) {
            lora::run_type<__nv_bfloat16>(p, plan, thin, v, stream);
        } else {
            lora::run_type<__half>(p, plan, thin, v, stream);
        }
    }
}

}  // namespace unsloth::kernels
