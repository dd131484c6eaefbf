// One AdamW kernel for all trainable parameters, a warp a block of 256 elements, and their gradient norm.
//
// Ceiling: the bandwidth of memory, 28 bytes an element with fp32 moments, 16 with 8-bit ones, 4 more when gradients
// are zeroed; adamw_math.h names the sources.
#include <algorithm>

#include "kernels/common/device.cuh"
#include "kernels/common/launch.h"
#include "kernels/dynamic_codes.h"
#include "kernels/optimizer.h"

namespace unsloth::kernels {
namespace {

using namespace adamw;

constexpr int warp = warp_size;
constexpr int threads = 256;
constexpr int block_elements = 256;
constexpr int per_lane = block_elements / warp;  // 8: four consecutive elements in each half of the block
constexpr uint8_t flag_decays = 1, flag_8bit = 2;
constexpr int rate_shift = 2;
// Magnitudes between which no quotient or remainder of the quick arithmetic below underflows or overflows.
constexpr float least_usual = 0x1p-72F, most_usual = 0x1p48F, least_usual_v = 0x1p-100F;
constexpr int resident_steps = 3;      // thread blocks of the update on a multiprocessor: registers before warps
constexpr int64_t most_blocks = 2048;  // enough for every card; a warp then takes several blocks of elements

/// The maps, and the tables that find a value's code in them: once a thread block.
struct Tables {
    float map[512];
    uint32_t signed_entries[SignedCodes::buckets];
    uint32_t unsigned_entries[UnsignedCodes::buckets];
};

template <class Codes>
__device__ void fill_entries(const float* map, uint32_t* sorted, uint32_t* entries) {
    for (int k = threadIdx.x; k < Codes::thresholds; k += blockDim.x)
        sorted[k] = bits_of_float(Codes::threshold(map, k));
    __syncthreads();
    for (int bucket = threadIdx.x; bucket < Codes::buckets; bucket += blockDim.x)
        entries[bucket] = Codes::entry(sorted, bucket);
    __syncthreads();
}

__device__ void fill_tables(const float* maps, Tables& tables) {
    __shared__ uint32_t sorted[256];
    for (int i = threadIdx.x; i < 512; i += blockDim.x) tables.map[i] = maps[i];
    __syncthreads();
    fill_entries<SignedCodes>(tables.map, sorted, tables.signed_entries);
    fill_entries<UnsignedCodes>(tables.map + 256, sorted, tables.unsigned_entries);
}

/// Of values that are not negative and no NaN: their bits are ordered as they are.
__device__ __forceinline__ float warp_max(float x) {
    return __uint_as_float(__reduce_max_sync(all_lanes, __float_as_uint(x)));
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

// Division and square root in the few instructions that give the rounded result where no intermediate leaves the
// normal range (they are what the compiler puts on the quick side of its own): its test and its slow side for each
// operation, 32 of them a thread, are what takes time. `unusual` below is that test for a whole block.

/// 1 / d to the last bit or so.
__device__ __forceinline__ float reciprocal(float d) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
    return fmaf(r, fmaf(-d, r, 1.0F), r);
}
__device__ __forceinline__ float quotient(float x, float d, float reciprocal_of_d) {
    const float q = __fmul_rn(x, reciprocal_of_d);
    return fmaf(-reciprocal_of_d, fmaf(d, q, -x), q);  // with these signs a zero keeps its own
}
/// The root of a normal number or of zero.
__device__ __forceinline__ float quick_root(float x) {
    float r;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(fmaxf(x, least_usual_v)));
    const float s = __fmul_rn(x, r);
    return fmaf(fmaf(-s, s, x), __fmul_rn(r, 0.5F), s);
}

/// 0 < |x| < bound in two instructions: a zero wraps around.
__device__ __forceinline__ bool is_below_but_not_zero(float x, float bound) {
    return __float_as_uint(x) * 2 - 1 < __float_as_uint(bound) * 2 - 1;
}

/// A lane's moments of a block, their maxima over the block, and the parameters.
struct Block8 {
    float m[per_lane], v[per_lane], p[per_lane];
    float largest_m, largest_v;
    int code_m[per_lane], code_v[per_lane];
};

/// Updates and codes where nothing is `unusual`.
__device__ __forceinline__ void update_fast(const Factors& factors, const Tables& tables, bool decays, Block8& b) {
    const float by_m = b.largest_m > 0.0F ? reciprocal(b.largest_m) : 0.0F;
    const float by_v = b.largest_v > 0.0F ? reciprocal(b.largest_v) : 0.0F;
#pragma unroll
    for (int k = 0; k < per_lane; ++k) {
        const float d = add(quick_root(b.v[k]), factors.eps8);
        b.p[k] = updated_8bit(factors, decays, quotient(b.m[k], d, reciprocal(d)), b.p[k]);
        const float scaled_m = quotient(fabsf(b.m[k]), b.largest_m, by_m);
        b.code_m[k] = signed_code(tables.signed_entries, b.m[k], scaled_m);
        b.code_v[k] = UnsignedCodes::code(tables.unsigned_entries, quotient(b.v[k], b.largest_v, by_v));
    }
}

/// The same for all numbers; rare, so small rather than fast.
__device__ __noinline__ void update_exact(const Factors& factors, const Tables& tables, bool decays, Block8& b) {
#pragma unroll 1
    for (int k = 0; k < per_lane; ++k) {
        b.p[k] = updated_8bit(factors, decays, div(b.m[k], add(root(b.v[k]), factors.eps8)), b.p[k]);
        const float scaled_m = b.largest_m > 0.0F ? div(fabsf(b.m[k]), b.largest_m) : 0.0F;
        const float scaled_v = b.largest_v > 0.0F ? div(b.v[k], b.largest_v) : 0.0F;
        b.code_m[k] = signed_code(tables.signed_entries, b.m[k], scaled_m);
        b.code_v[k] = UnsignedCodes::code(tables.unsigned_entries, scaled_v);
    }
}

__device__ __forceinline__ void step_8bit(const AdamwArgs& args, const Factors& factors, const Tables& tables,
                                          bool decays, int slot, int lane, const float (&g)[per_lane],
                                          float (&p)[per_lane]) {
    uint8_t* m_slot = args.m8 + int64_t{slot} * block_elements + lane * 4;
    uint8_t* v_slot = args.v8 + int64_t{slot} * block_elements + lane * 4;
    Block8 b;
    load_8(m_slot, b.code_m);
    load_8(v_slot, b.code_v);
    const float old_absmax_m = args.absmax_m8[slot], old_absmax_v = args.absmax_v8[slot];
    const float least_v = mul(mul(tables.map[257], old_absmax_v), args.constants.beta2);
    b.largest_m = b.largest_v = 0.0F;
    bool unusual = !(factors.eps8 >= least_usual && factors.eps8 < most_usual);
#pragma unroll
    for (int k = 0; k < per_lane; ++k) {
        b.m[k] = mul(tables.map[b.code_m[k]], old_absmax_m);
        b.v[k] = mul(tables.map[256 + b.code_v[k]], old_absmax_v);
        b.p[k] = p[k];
        const float v_floor = v_is_unknown(b.code_m[k], b.code_v[k]) ? least_v : 0.0F;
        moments_8bit(args.constants, factors, g[k], v_floor, b.m[k], b.v[k]);
        b.largest_m = fmaxf(b.largest_m, fabsf(b.m[k]));
        b.largest_v = fmaxf(b.largest_v, b.v[k]);
        unusual |= is_below_but_not_zero(b.m[k], least_usual);
        unusual |= is_below_but_not_zero(b.v[k], least_usual_v);
    }
    b.largest_m = warp_max(b.largest_m);
    b.largest_v = warp_max(b.largest_v);
    unusual |= !(b.largest_m < most_usual && b.largest_v < most_usual);
    unusual |= b.largest_v < least_usual && b.largest_v != 0.0F;
    if (__any_sync(all_lanes, unusual)) {
        Block8 in_memory = b;  // a call takes it by its address: keep that off the usual path's registers
        update_exact(factors, tables, decays, in_memory);
        b = in_memory;
    } else {
        update_fast(factors, tables, decays, b);
    }
#pragma unroll
    for (int k = 0; k < per_lane; ++k) p[k] = b.p[k];
    store_8(m_slot, b.code_m);
    store_8(v_slot, b.code_v);
    if (lane == 0) {
        args.absmax_m8[slot] = b.largest_m;
        args.absmax_v8[slot] = b.largest_v;
    }
}

__device__ __forceinline__ void zero_8(float* to) {
    const float zeros[per_lane] = {};
    store_8(to, zeros);
}

/// Clears every gradient, where the update is skipped.
__device__ void zero_gradients(const AdamwArgs& args) {
    const int64_t step = int64_t{gridDim.x} * threads * 4, elements = args.blocks * block_elements;
    for (int64_t i = (int64_t{blockIdx.x} * threads + threadIdx.x) * 4; i < elements; i += step)
        *reinterpret_cast<float4*>(args.grads + i) = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
}

/// Where a block's moments are, and BlockFlag.
struct Place {
    int slot;
    uint8_t flags;
};
__device__ __forceinline__ Place place_of(const AdamwArgs& args, int64_t block) {
    if (block >= args.blocks) return {0, 0};
    return {args.slots[block], args.flags[block]};
}

/// A warp a block of 256 elements; the block's maximum needs shuffles only. k8bit: some moments are 8-bit; without
/// them there are no tables.
template <bool k8bit>
__global__ void __launch_bounds__(threads, resident_steps) adamw_blocks(const __grid_constant__ AdamwArgs args) {
    __shared__ Tables tables;  // of no size where nothing refers to them
    if (args.outcome->skipped != 0) {
        if (args.zero_gradients) zero_gradients(args);
        return;
    }
    if constexpr (k8bit) fill_tables(args.maps, tables);
    Factors factors = make_factors(args.constants, *args.scalars, args.outcome->clip, 0);
    int rate_group = 0;  // of `factors`
    const int lane = threadIdx.x % warp;
    const int64_t warps = int64_t{gridDim.x} * (threads / warp);
    int64_t block = int64_t{blockIdx.x} * (threads / warp) + threadIdx.x / warp;
    Place next = place_of(args, block);
    for (; block < args.blocks; block += warps) {
        const auto [slot, flags] = next;
        next = place_of(args, block + warps);  // on its way while this block is computed
        const bool decays = (flags & flag_decays) != 0;
        if (const int group = flags >> rate_shift; !args.one_rate && group != rate_group) {
            rate_group = group;
            factors = make_factors(args.constants, *args.scalars, args.outcome->clip, group);
        }
        const int64_t first = block * block_elements + lane * 4;
        float p[per_lane], g[per_lane];
        load_8(args.params + first, p);
        load_8(args.grads + first, g);
        if (k8bit && (flags & flag_8bit) != 0) {
            step_8bit(args, factors, tables, decays, slot, lane, g, p);
        } else {
            const int64_t place = int64_t{slot} * block_elements + lane * 4;
            step_32bit(args, factors, decays, g, p, args.m32 + place, args.v32 + place);
        }
        store_8(args.params + first, p);
        if (args.zero_gradients) zero_8(args.grads + first);
    }
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
    const double total = block_sum_f64<threads>(static_cast<double>(sum));
    if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

__global__ void __launch_bounds__(threads) finish_norm(const double* __restrict__ partials, int64_t count,
                                                       const spec::StepScalars* scalars, spec::StepOutcome* outcome) {
    double sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += threads) sum += partials[i];
    const double total = block_sum_f64<threads>(sum);
    if (threadIdx.x == 0) finish_gradient_norm(total, *scalars, *outcome);
}

template <bool k8bit>
void launch_step(const AdamwArgs& args, cudaStream_t stream) {
    const auto kernel = adamw_blocks<k8bit>;
    // With tables to fill, no more thread blocks than run at once.
    const int64_t most = k8bit ? resident_blocks(reinterpret_cast<const void*>(kernel), threads, 0) : most_blocks;
    const auto grid = static_cast<unsigned>(std::min(ceil_div(args.blocks, threads / warp), most));
    UNSLOTH_LAUNCH(kernel, grid, threads, 0, stream, args);
}

}  // namespace

void adamw_step(const AdamwArgs& args, cudaStream_t stream) {
    if (args.blocks == 0) return;
    args.m8 != nullptr ? launch_step<true>(args, stream) : launch_step<false>(args, stream);
}

void gradient_squares(const GradientSquaresArgs& args, cudaStream_t stream) {
    if (const int64_t chunks = ceil_div(args.elements, norm_chunk); chunks > 0)
        UNSLOTH_LAUNCH(sum_of_squares, static_cast<unsigned>(chunks), threads, 0, stream, args.grads, args.elements,
                       args.partials);
}

void finish_gradient_norm(const GradientNormArgs& args, cudaStream_t stream) {
    UNSLOTH_LAUNCH(finish_norm, 1, threads, 0, stream, args.partials, args.chunks, args.scalars, args.outcome);
}

}  // namespace unsloth::kernels
