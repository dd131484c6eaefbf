// v = dy·sB and dB += s·dyᵀ·u: one kernel reads dy (lora_dy.cuh), a second adds the strips' shares of v, and dB over
// further splits of the tokens, in a fixed order.
#include "kernels/lora_dy_produce.cuh"

#include <utility>

#include "kernels/tensor_map.h"
#include "unsloth/core/check.h"

namespace unsloth::kernels {
namespace lora {
namespace {

// ---- the sums over strips (v) and over splits of the tokens (dB)

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
        for (int s = lane; s < p.splits; s += db_lanes)
            add(total, *reinterpret_cast<const float4*>(from + s * distance));
    }
    total.x = group_sum<db_lanes>(total.x), total.y = group_sum<db_lanes>(total.y);
    total.z = group_sum<db_lanes>(total.z), total.w = group_sum<db_lanes>(total.w);
    if (inside && lane == 0) accumulate(range.db + column * range.rank + c, total, range.scale, range.rank - c);
}

template <class T, int kThin>
__global__ void __launch_bounds__(finish_threads) finish_kernel(const __grid_constant__ FinishParams p) {
#if __CUDA_ARCH__ >= 900
    griddepcontrol_wait();
    const int64_t index = static_cast<int64_t>(blockIdx.x) * finish_threads + threadIdx.x;
    const int row = static_cast<int>(blockIdx.y);
    if (row < p.ranges) {
        finish_v<T, kThin>(p, row, index);
    } else {
        finish_db<kThin>(p, row - p.ranges, index);
    }
#else
    __trap();  // as dy_kernel
#endif
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
    launch_kernel(&finish_kernel<T, kThin>,
                  {.grid = grid, .threads = finish_threads, .stream = stream, .after_previous = true}, f);
}

// ---- launches

template <class T, class X, class Tile, int kThin>
void run_tile(DyParams p, const LoraPlan& plan, Matrix v, cudaStream_t stream) {
    using Shared = DyShared<X, Tile, kThin>;
    p.strips = 0;
    for (int i = 0; i < p.ranges; ++i) {
        p.range[i].first_strip = p.strips;
        p.strips += static_cast<int>(ceil_div(p.range[i].columns, Tile::kColumns));
    }
    p.stages = Shared::stages(p.thin);
    if constexpr (Shared::kCodes)
        p.code_map = encode_tensor_map({.data = p.dy,
                                        .box_columns = Shared::kBoxColumns,
                                        .box_rows = Shared::kStageTokens,
                                        .rows = p.first_token + p.tokens,
                                        .columns = p.columns,
                                        .row_bytes = p.dy_stride});
    const dim3 grid(static_cast<unsigned>(plan.cluster * plan.splits), static_cast<unsigned>(p.strips));
    launch_kernel(&dy_kernel<T, X, Tile, kThin>,
                  {.grid = grid,
                   .threads = Tile::kThreads,
                   .shared_bytes = static_cast<std::size_t>(Shared::bytes(p.thin)),
                   .stream = stream,
                   .cluster = plan.cluster},
                  p);
    finish<T, kThin>(p, plan.splits, Tile::kColumns, v, stream);
}

template <class T, class X = T>
void run_type(const DyParams& p, const LoraPlan& plan, int thin, Matrix v, cudaStream_t stream) {
    if (thin == 16) {
        switch (plan.tile) {
            case 0:
                return run_tile<T, X, DyTile<8, 2, 2>, 16>(p, plan, v, stream);
            case 1:
                return run_tile<T, X, DyTile<8, 4, 2>, 16>(p, plan, v, stream);
            case 2:
                return run_tile<T, X, DyTile<16, 4, 1>, 16>(p, plan, v, stream);
            case 3:
                return run_tile<T, X, DyTile<8, 8, 1>, 16>(p, plan, v, stream);
            default:
                break;
        }
    } else {
        if (plan.tile == 0) return run_tile<T, X, DyTile<8, 2, is_codes<X> ? 1 : 2>, 32>(p, plan, v, stream);
        if constexpr (!is_codes<X>)
            if (plan.tile == 1) return run_tile<T, X, DyTile<8, 4, 1>, 32>(p, plan, v, stream);
    }
    UNSLOTH_CHECK(false, "lora_v_db: no tile ", plan.tile, " for ", thin, " columns");
}

int strip_columns(int tile) {
    return std::min(256 << tile, 1024);
}

int64_t padded_rank(const LoraBackward& g) {
    int64_t widest = 0;
    for (int i = 0; i < g.part_count; ++i) widest = std::max(widest, g.parts[i].r);
    return widest <= 16 ? 16 : 32;
}

/// Floats of workspace: a token's share of v, and dB's.
std::pair<int64_t, int64_t> workspace_floats(const LoraBackward& g, const LoraPlan& plan) {
    int64_t strips = 0;
    for (int i = 0; i < g.part_count; ++i)
        if (g.parts[i].r > 0) strips += ceil_div(g.parts[i].n, strip_columns(plan.tile));
    return {strips * padded_rank(g), plan.splits > 1 ? plan.splits * g.n * padded_rank(g) : 0};
}

constexpr int64_t least_run = 256;                 ///< tokens that are taken at a time at least
constexpr int64_t kept_bytes = int64_t{24} << 20;  ///< of dy that the second-level cache may hold on to

}  // namespace
}  // namespace lora

LoraWorkspace lora_workspace(const LoraBackward& g, const LoraPlan& plan) {
    const auto [token, fixed] = lora::workspace_floats(g, plan);
    const int64_t tokens = round_up(g.tokens, lora::step_tokens);
    return {4 * (tokens * token + fixed), 4 * (std::min(tokens, lora::least_run) * token + fixed)};
}

void lora_v_db(const LoraBackward& g, const LoraPlan& plan, void* workspace, int64_t workspace_bytes,
               cudaStream_t stream) {
    UNSLOTH_CHECK(lora_supports(g, 9), "lora_v_db: unsupported operands");
    const LoraWorkspace need = lora_workspace(g, plan);
    UNSLOTH_CHECK(workspace_bytes >= need.least, "lora_v_db: ", workspace_bytes, " bytes of workspace, ", need.least,
                  " needed");
    lora::DyParams p = {};
    p.b = g.b.data, p.b_stride = g.b.stride, p.dy_stride = g.dy.stride, p.columns = g.n;
    p.thin = static_cast<int>(g.r), p.cluster = plan.cluster;
    for (int i = 0; i < g.part_count; ++i) {
        const LoraPart& part = g.parts[i];
        if (part.r == 0) continue;
        p.range[p.ranges++] = {static_cast<int>(part.n_begin),
                               static_cast<int>(part.n),
                               static_cast<int>(part.r_begin),
                               static_cast<int>(part.r),
                               0,
                               static_cast<int>(part.rank),
                               part.scale,
                               part.db};
    }
    if (g.tokens == 0 || p.ranges == 0) return;
    const auto [token, fixed] = lora::workspace_floats(g, plan);
    if (plan.splits > 1) p.db_parts = static_cast<float*>(workspace);
    p.v_parts = static_cast<float*>(workspace) + fixed;
    // Runs of equal length that fit the workspace.
    const int64_t fit = (workspace_bytes / 4 - fixed) / token / lora::step_tokens * lora::step_tokens;
    const int64_t run_tokens = round_up(ceil_div(g.tokens, ceil_div(g.tokens, fit)), lora::step_tokens);
    const int64_t element = static_cast<int64_t>(spec::size_of(g.type));
    const bool codes = g.codes.codes != nullptr;
    if (codes) p.dy = g.codes.codes, p.dy_stride = g.n;
    p.scale_stride = g.codes.scale_stride, p.factors = g.codes.factors;
    p.evict_first = !codes && g.tokens * g.n * element > lora::kept_bytes;
    const int thin = static_cast<int>(lora::padded_rank(g));
    for (int64_t begin = 0; begin < g.tokens; begin += run_tokens) {
        p.tokens = static_cast<int>(std::min(run_tokens, g.tokens - begin));
        p.first_token = static_cast<int>(begin), p.scales = g.codes.scales + begin;
        if (!codes) p.dy = static_cast<const char*>(g.dy.data) + begin * g.dy.stride * element;
        p.u = static_cast<const char*>(g.u) + begin * g.r * element;
        const Matrix v = {static_cast<char*>(g.v.data) + begin * g.v.stride * element, g.v.stride};
        if (codes && g.codes.format == CodeFormat::int8) {
            lora::run_type<__nv_bfloat16, Int8Codes>(p, plan, thin, v, stream);
        } else if (codes) {
            lora::run_type<__nv_bfloat16, E4m3Codes>(p, plan, thin, v, stream);
        } else if (g.type == spec::DType::bf16) {
            lora::run_type<__nv_bfloat16>(p, plan, thin, v, stream);
        } else {
            lora::run_type<__half>(p, plan, thin, v, stream);
        }
    }
}

}  // namespace unsloth::kernels
