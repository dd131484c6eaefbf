// One AdamW kernel for all trainable parameters, and their gradient norm.
#include <algorithm>

#include "kernels/common.h"
#include "kernels/optimizer.h"

namespace unsloth::kernels {
namespace {

using namespace adamw;

constexpr int warp = 32;
constexpr unsigned all_lanes = 0xFFFFFFFFu;
constexpr int threads = 256;
constexpr int block_elements = 256;
constexpr int per_lane = block_elements / warp;  // 8: four consecutive elements in each half of the block
constexpr uint8_t flag_decays = 1, flag_8bit = 2;
constexpr unsigned max_grid = 2048;  // enough for every card; a warp then takes several blocks

/// The maps and the midpoints between their entries, once a thread block.
struct Tables {
    float map[512];
    float midpoints[512];  // [255] and [511] unused
};

__device__ void load_tables(const float* maps, Tables& tables) {
    for (int i = threadIdx.x; i < 512; i += threads) {
        tables.map[i] = maps[i];
        tables.midpoints[i] = i % 256 < 255 ? mul(add(maps[i], maps[i + 1]), 0.5F) : 0.0F;
    }
    __syncthreads();
}

/// Where x lies in the dynamic map, within an entry or so: decade i of 7 has `items` evenly spaced values.
/// Both maps: the values of decade i begin at entry `items` - 1 after zero, and items doubles from decade to
/// decade.
__device__ __forceinline__ int steps_from_zero(float magnitude, int items_of_first_decade) {
    const float decade = fminf(fmaxf(floorf(__log10f(magnitude)) + 7.0F, 0.0F), 6.0F);
    const float items = ldexpf(static_cast<float>(items_of_first_decade), static_cast<int>(decade));
    const float fraction = (magnitude * __exp10f(6.0F - decade) - 0.1F) * (1.0F / 0.9F);
    const float within = fminf(fmaxf(floorf(fraction * items), 0.0F), items);
    return static_cast<int>(items + within);
}
__device__ __forceinline__ int guess_signed(float x) {
    const int steps = steps_from_zero(fabsf(x), 1);
    return x < 0.0F ? max(zero_code_m - steps, 0) : min(zero_code_m + steps, 255);
}
__device__ __forceinline__ int guess_unsigned(float x) {
    return min(max(steps_from_zero(x, 2) - 1, 0), 255);
}

__device__ __forceinline__ float warp_maximum(float x) {
#pragma unroll
    for (int offset = warp / 2; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(all_lanes, x, offset));
    return x;
}

__device__ __forceinline__ void load_8(const float* from, float (&to)[per_lane]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float4 x = reinterpret_cast<const float4*>(from)[half * warp];
        to[half * 4] = x.x, to[half * 4 + 1] = x.y, to[half * 4 + 2] = x.z, to[half * 4 + 3] = x.w;
    }
}
__device__ __forceinline__ void store_8(float* to, const float (&from)[per_lane]) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
        reinterpret_cast<float4*>(to)[half * warp] =
            make_float4(from[half * 4], from[half * 4 + 1], from[half * 4 + 2], from[half * 4 + 3]);
}
__device__ __forceinline__ void load_8(const uint8_t* from, int (&to)[per_lane]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const uchar4 x = reinterpret_cast<const uchar4*>(from)[half * warp];
        to[half * 4] = x.x, to[half * 4 + 1] = x.y, to[half * 4 + 2] = x.z, to[half * 4 + 3] = x.w;
    }
}
__device__ __forceinline__ void store_8(uint8_t* to, const int (&from)[per_lane]) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
        reinterpret_cast<uchar4*>(to)[half * warp] =
            make_uchar4(static_cast<uint8_t>(from[half * 4]), static_cast<uint8_t>(from[half * 4 + 1]),
                        static_cast<uint8_t>(from[half * 4 + 2]), static_cast<uint8_t>(from[half * 4 + 3]));
}

/// `p`, `g`: this lane's elements. The moments' slot begins at m and v (already at this lane's place).
__device__ __forceinline__ void step_32bit(const AdamwArgs& args, const Factors& factors, bool decays,
                                           const float (&g)[per_lane], float (&p)[per_lane], float* m_slot,
                                           float* v_slot) {
    float m[per_lane], v[per_lane];
    load_8(m_slot, m);
    load_8(v_slot, v);
#pragma unroll
    for (int k = 0; k < per_lane; ++k) element_32bit(args.constants, factors, decays, g[k], p[k], m[k], v[k]);
    store_8(m_slot, m);
    store_8(v_slot, v);
}

__device__ __forceinline__ void step_8bit(const AdamwArgs& args, const Factors& factors, const Tables& tables,
                                          bool decays, int slot, int lane, const float (&g)[per_lane],
                                          float (&p)[per_lane]) {
    uint8_t* m_slot = args.m8 + int64_t{slot} * block_elements + lane * 4;
    uint8_t* v_slot = args.v8 + int64_t{slot} * block_elements + lane * 4;
    int code_m[per_lane], code_v[per_lane];
    load_8(m_slot, code_m);
    load_8(v_slot, code_v);
    const float old_absmax_m = args.absmax_m8[slot], old_absmax_v = args.absmax_v8[slot];
    float m[per_lane], v[per_lane], largest_m = 0, largest_v = 0;
#pragma unroll
    for (int k = 0; k < per_lane; ++k) {
        m[k] = mul(tables.map[code_m[k]], old_absmax_m);
        v[k] = mul(tables.map[256 + code_v[k]], old_absmax_v);
        const float v_floor =
            v_floor_8bit(args.constants, code_m[k], code_v[k], tables.map[257], old_absmax_v);
        element_8bit(args.constants, factors, decays, g[k], v_floor, p[k], m[k], v[k]);
        largest_m = fmaxf(largest_m, fabsf(m[k]));
        largest_v = fmaxf(largest_v, v[k]);
    }
    largest_m = warp_maximum(largest_m);
    largest_v = warp_maximum(largest_v);
#pragma unroll
    for (int k = 0; k < per_lane; ++k) {
        const float scaled_m = largest_m > 0.0F ? div(m[k], largest_m) : 0.0F;
        const float scaled_v = largest_v > 0.0F ? div(v[k], largest_v) : 0.0F;
        code_m[k] = with_sign_of(m[k], nearest_code(scaled_m, tables.midpoints, guess_signed(scaled_m)));
        code_v[k] = nearest_code(scaled_v, tables.midpoints + 256, guess_unsigned(scaled_v));
    }
    store_8(m_slot, code_m);
    store_8(v_slot, code_v);
    if (lane == 0) {
        args.absmax_m8[slot] = largest_m;
        args.absmax_v8[slot] = largest_v;
    }
}

/// A warp a block of 256 elements; the block's maximum needs shuffles only.
__global__ void __launch_bounds__(threads) adamw_blocks(AdamwArgs args) {
    __shared__ Tables tables;
    if (args.outcome->skipped != 0) return;
    load_tables(args.maps, tables);
    const Factors factors = make_factors(args.constants, *args.scalars, args.outcome->clip);
    const int lane = threadIdx.x % warp;
    const int64_t warps = int64_t{gridDim.x} * (threads / warp);
    for (int64_t block = int64_t{blockIdx.x} * (threads / warp) + threadIdx.x / warp; block < args.blocks;
         block += warps) {
        const uint8_t flags = args.flags[block];
        const int slot = args.slots[block];
        const bool decays = (flags & flag_decays) != 0;
        const int64_t first = block * block_elements + lane * 4;
        float p[per_lane], g[per_lane];
        load_8(args.params + first, p);
        load_8(args.grads + first, g);
        if ((flags & flag_8bit) != 0) {
            step_8bit(args, factors, tables, decays, slot, lane, g, p);
        } else {
            const int64_t place = int64_t{slot} * block_elements + lane * 4;
            step_32bit(args, factors, decays, g, p, args.m32 + place, args.v32 + place);
        }
        store_8(args.params + first, p);
    }
}

/// The sum of `sum` over the thread block, at thread 0, in a fixed order.
__device__ double sum_of_block(double sum) {
    __shared__ double sums[threads];
    sums[threadIdx.x] = sum;
    for (int half = threads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    return sums[0];
}

/// A thread block a chunk: 64 squares in fp32 a thread, the rest in fp64.
__global__ void __launch_bounds__(threads)
    sum_of_squares(const float* __restrict__ x, int64_t elements, double* __restrict__ partials) {
    const int64_t end = min(elements, (int64_t{blockIdx.x} + 1) * norm_chunk);
    float sum = 0;
#pragma unroll 4
    for (int64_t i = int64_t{blockIdx.x} * norm_chunk + threadIdx.x * 4; i < end; i += threads * 4) {
        const float4 v = *reinterpret_cast<const float4*>(x + i);
        sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    const double total = sum_of_block(static_cast<double>(sum));
    if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

__global__ void __launch_bounds__(threads) finish_norm(const double* __restrict__ partials, int64_t count,
                                                       const StepScalars* scalars, StepOutcome* outcome) {
    double sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += threads) sum += partials[i];
    const double total = sum_of_block(sum);
    if (threadIdx.x == 0) finish_gradient_norm(total, *scalars, *outcome);
}

}  // namespace

void adamw_step(const AdamwArgs& args, cudaStream_t stream) {
    if (args.blocks == 0) return;
    const auto grid =
        static_cast<unsigned>(std::min<int64_t>(ceil_div(args.blocks, threads / warp), max_grid));
    UNSLOTH_LAUNCH(adamw_blocks, grid, threads, 0, stream, args);
}

void gradient_norm(const GradientNormArgs& args, cudaStream_t stream) {
    const int64_t chunks = ceil_div(args.elements, norm_chunk);
    if (chunks > 0)
        UNSLOTH_LAUNCH(sum_of_squares, static_cast<unsigned>(chunks), threads, 0, stream, args.grads,
                       args.elements, args.partials);
    UNSLOTH_LAUNCH(finish_norm, 1, threads, 0, stream, args.partials, chunks, args.scalars, args.outcome);
}

}  // namespace unsloth::kernels
