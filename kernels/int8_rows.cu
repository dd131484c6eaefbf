// Rows and their int8 codes in one kernel. 32 lanes hold 256 values side by side, so that a warp (half of one in RoPE,
// whose units are pairs of packs) finds the amax (largest magnitude) of a block of codes by itself: nothing waits for
// the rest of the row, of which a thread makes a unit. A norm's row is one thread block's.
//
// Ceiling: the bandwidth of memory: what makes the row reads and writes, and 1 byte a code.
#include "kernels/code_pairs.cuh"
#include "kernels/common/launch.h"
#include "kernels/int8_rows.h"
#include "kernels/row_makers.cuh"

namespace unsloth::kernels {

namespace {

constexpr int width = pack_width;

template <class Maker>
inline constexpr bool pairs_packs = false;  ///< a unit's packs are in the same block of codes
template <>
inline constexpr bool pairs_packs<RotatedRows> = true;

/// include/unsloth/ops/coded_rows.h's rule, and 1 / scale: the bits of divisions (tried with every mantissa)
/// by a step of Newton's each. A warp has one for each 256 values, where the branches of divisions would count.
struct BlockScale {
    float scale, inverse;
};
__device__ __forceinline__ BlockScale block_scale(float amax) {
    constexpr float largest = 127.f, part = 1.f / largest;
    const float near = amax * part, exact = __fmaf_rn(__fmaf_rn(-near, largest, amax), part, near);
    const float scale = amax == 0.f ? 1.f : exact < least_scale ? least_scale : exact;
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(scale));
    return {scale, __fmaf_rn(inverse, __fmaf_rn(-scale, inverse, 1.f), inverse)};
}

/// Rounded by a sum whose last place is 1, of which the low byte is the code.
__device__ __forceinline__ uint2 encode(const float (&values)[width], float inverse) {
    constexpr float rounder = 3 << 22;
    uint32_t words[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        uint32_t codes[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) codes[i] = __float_as_uint(__fmaf_rn(values[4 * half + i], inverse, rounder));
        words[half] =
            __byte_perm(__byte_perm(codes[0], codes[1], 0x0040), __byte_perm(codes[2], codes[3], 0x0040), 0x5410);
    }
    return {words[0], words[1]};
}

/// The largest that the lanes which share a block of codes have seen. Magnitudes compare as their bits do.
template <bool kHalf>
__device__ __forceinline__ float shared_amax(uint32_t own) {
    return __uint_as_float(__reduce_max_sync(!kHalf                  ? all_lanes
                                             : threadIdx.x % 32 < 16 ? 0x0000FFFFu
                                                                     : 0xFFFF0000u,
                                             own));
}

/// By powers of two: what bf16 holds stays exact, but for the smallest.
__device__ __forceinline__ void multiply(Bf16x8& values, const uint4& factors) {
    auto* pairs = reinterpret_cast<uint32_t*>(values.v);
    pairs[0] = multiply_pairs(pairs[0], factors.x), pairs[1] = multiply_pairs(pairs[1], factors.y);
    pairs[2] = multiply_pairs(pairs[2], factors.z), pairs[3] = multiply_pairs(pairs[3], factors.w);
}

/// The values that a thread made of a unit, as codes. All lanes of a warp take part, some with zeros that are not used.
template <class Maker>
__device__ __forceinline__ void store_codes(const Maker& maker, const Int8Rows& out, uint32_t row, int64_t columns,
                                            int unit, bool wanted, const Bf16x8 (&made)[Maker::segments]) {
    constexpr bool pairs = pairs_packs<Maker>;
    float values[Maker::segments][width];
    uint32_t amax[Maker::segments] = {};
#pragma unroll
    for (int s = 0; s < Maker::segments; ++s) {
        Bf16x8 levelled = made[s];
        if (out.factors != nullptr && wanted) {
            const auto* factors =
                reinterpret_cast<const uint4*>(static_cast<const Bf16*>(out.factors) + maker.column(unit, s));
            multiply(levelled, *factors);
        }
#pragma unroll
        for (int k = 0; k < width; ++k) {
            values[s][k] = to_float(levelled.v[k]);
            uint32_t& largest = amax[pairs ? 0 : s];
            largest = max(largest, __float_as_uint(fabsf(values[s][k])));
        }
    }
    BlockScale block;
#pragma unroll
    for (int s = 0; s < Maker::segments; ++s) {
        if (!pairs || s == 0) block = block_scale(shared_amax<pairs>(amax[s]));
        if (!wanted) continue;
        const int column = maker.column(unit, s);
        if (column % int8_block == 0) out.scales[column / int8_block * out.scale_stride + row] = block.scale;
        *reinterpret_cast<uint2*>(out.codes + row * columns + column) = encode(values[s], block.inverse);
    }
}

/// Unit i of a thread is i * blockDim.x + threadIdx.x: blocks of codes and warps begin together.
template <int kUnits>
__global__ void __launch_bounds__(most_threads<NormalisedRows, kUnits>)
    norm_int8_kernel(const NormalisedRows maker, int units, int64_t columns, const Int8Rows out) {
    const uint32_t row = blockIdx.x;
    RowInputs<NormalisedRows, kUnits> inputs(maker, row, units);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
        const int unit = i * blockDim.x + threadIdx.x;
        const bool wanted = unit < units;
        Bf16x8 made[1] = {};
        if (wanted) inputs.make(maker, row, unit, i, made);
        store_codes(maker, out, row, columns, unit, wanted, made);
    }
}

constexpr int part_threads = 256;  ///< units of a part of a row

/// Each row is `parts` thread blocks'.
template <class Maker>
__global__ void __launch_bounds__(part_threads)
    int8_rows_kernel(const Maker maker, int parts, int units, int64_t columns, const Int8Rows out) {
    const uint32_t row = blockIdx.x / parts;
    const int unit = static_cast<int>(blockIdx.x - row * parts) * part_threads + threadIdx.x;
    const bool wanted = unit < units;
    Bf16x8 made[Maker::segments] = {};
    if (wanted) {
        Bf16x8 in[Maker::inputs];
        load_unit(maker, row, unit, in);
        maker.make(row, unit, in, made);
    }
    store_codes(maker, out, row, columns, unit, wanted, made);
}

template <class Maker>
void run(const Maker& maker, int64_t rows, int64_t columns, const Int8Rows& out, cudaStream_t stream) {
    if (rows == 0) return;
    const auto units = static_cast<int>(columns / (pack_width * Maker::segments));
    const auto parts = static_cast<int>(ceil_div(units, part_threads));
    UNSLOTH_LAUNCH(int8_rows_kernel<Maker>, static_cast<unsigned>(rows * parts), part_threads, 0, stream, maker, parts,
                   units, columns, out);
}

}  // namespace

void quantize_rows_int8(const ConstMatrix& x, int64_t rows, int64_t columns, const Int8Rows& out, cudaStream_t stream) {
    run(CopiedRows{x}, rows, columns, out, stream);
}

void norm_forward_int8(const NormForward& params, const Int8Rows& out, cudaStream_t stream) {
    const int64_t rows = params.shape.tokens, columns = params.shape.columns;
    by_units<NormalisedRows>(rows, columns, [&](auto of_a_thread, int units, int threads) {
        UNSLOTH_LAUNCH(norm_int8_kernel<decltype(of_a_thread)::value>, static_cast<unsigned>(rows), threads, 0, stream,
                       NormalisedRows{params}, units, columns, out);
    });
}

void swiglu_forward_int8(const SwigluForward& params, const Int8Rows& out, cudaStream_t stream) {
    with_gate(params.activation,
              [&](auto gate) { run(SwigluRows<gate()>{params}, params.tokens, params.columns, out, stream); });
}

void swiglu_backward_int8(const SwigluBackward& params, bool codes_alone, const Int8Rows& out, cudaStream_t stream) {
    with_gate(params.activation, [&](auto gate) {
        run(SwigluGradientRows<gate()>{params, codes_alone}, params.tokens, 2 * params.columns, out, stream);
    });
}

void rope_apply_int8(const RopeApply& params, int64_t columns, bool codes_alone, const Int8Rows& out,
                     cudaStream_t stream) {
    run(RotatedRows{params, static_cast<int>(params.pairs / width), codes_alone}, params.tokens, columns, out, stream);
}

}  // namespace unsloth::kernels
