// Rows and their int8 codes in one kernel: a block makes a row. 32 lanes hold 256 values side by side, so that a warp
// (half of one in RoPE, whose units are pairs of packs) finds a block's amax (largest magnitude) by itself: nothing
// waits for the rest of the row.
//
// Ceiling: the bandwidth of memory: what makes the row reads and writes, and 1 byte a code.
#include "kernels/common/launch.h"
#include "kernels/int8_rows.h"
#include "kernels/row_makers.cuh"

namespace unsloth::kernels {

namespace {

constexpr int width = pack_width;

template <class Maker>
inline constexpr bool pairs_packs = false;  ///< a unit's packs lie in the same block of codes
template <>
inline constexpr bool pairs_packs<RotatedRows> = true;

__device__ __forceinline__ uint2 encode(const float (&values)[width], float inverse) {
    uint32_t words[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        uint32_t codes[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(codes[i]) : "f"(values[4 * half + i] * inverse));
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

/// What a thread made of a unit, as codes. All lanes of a warp take part, some with zeros that nobody wants.
template <class Maker>
__device__ __forceinline__ void store_codes(const Maker& maker, const Int8Rows& out, uint32_t row, int64_t columns,
                                            int unit, bool wanted, const Bf16x8 (&made)[Maker::segments]) {
    constexpr bool pairs = pairs_packs<Maker>;
    float values[Maker::segments][width];
    uint32_t amax[Maker::segments] = {};
#pragma unroll
    for (int s = 0; s < Maker::segments; ++s) {
        Bf16x8 factors;
        const bool levels = out.factors != nullptr && wanted;
        if (levels) factors = load_pack<width>(static_cast<const Bf16*>(out.factors) + maker.column(unit, s));
#pragma unroll
        for (int k = 0; k < width; ++k) {
            values[s][k] = to_float(made[s].v[k]) * (levels ? to_float(factors.v[k]) : 1.f);
            uint32_t& largest = amax[pairs ? 0 : s];
            largest = max(largest, __float_as_uint(fabsf(values[s][k])));
        }
    }
    float scale = 1.f;
#pragma unroll
    for (int s = 0; s < Maker::segments; ++s) {
        if (!pairs || s == 0) scale = code_scale(shared_amax<pairs>(amax[s]), 127.f);
        if (!wanted) continue;
        const int column = maker.column(unit, s);
        if (column % int8_block == 0) out.scales[column / int8_block * out.scale_stride + row] = scale;
        *reinterpret_cast<uint2*>(out.codes + row * columns + column) = encode(values[s], __frcp_rn(scale));
    }
}

/// Unit i of a thread is i * blockDim.x + threadIdx.x: blocks of codes and warps begin together.
template <class Maker, int kUnits>
__global__ void __launch_bounds__(most_threads<Maker, kUnits>)
    int8_rows_kernel(const Maker maker, int units, int64_t columns, const Int8Rows out) {
    const uint32_t row = blockIdx.x;
    constexpr bool kept = Maker::normalises && kUnits <= 4;  // else read where it is used: again, for the longest norms
    Bf16x8 in[kept ? kUnits : 1][Maker::inputs];
    float factor = 0.f;
    if constexpr (Maker::normalises) {
        __shared__ float sums[32];
        float squares = 0.f;
        Bf16x8 x[kUnits][1];
#pragma unroll
        for (int i = 0; i < kUnits; ++i) {
            const int unit = i * blockDim.x + threadIdx.x;
            x[i][0] = {};
            if (unit < units) load_unit(maker, row, unit, x[i]);
        }
#pragma unroll
        for (int i = 0; i < kUnits; ++i) {
#pragma unroll
            for (int k = 0; k < width; ++k) squares += to_float(x[i][0].v[k]) * to_float(x[i][0].v[k]);
            if constexpr (kept) in[i][0] = x[i][0];
        }
        factor = maker.factor(row, block_sum(squares, sums));
    }
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
        const int unit = i * blockDim.x + threadIdx.x;
        const bool wanted = unit < units;
        Bf16x8(&inputs)[Maker::inputs] = in[kept ? i : 0];
        Bf16x8 made[Maker::segments] = {};
        if (wanted) {
            if constexpr (!kept) load_unit(maker, row, unit, inputs);
            maker.make(row, unit, inputs, factor, made);
        }
        store_codes(maker, out, row, columns, unit, wanted, made);
    }
}

template <class Maker>
void run(const Maker& maker, int64_t rows, int64_t columns, const Int8Rows& out, cudaStream_t stream) {
    by_units<Maker>(rows, columns, [&](auto of_a_thread, int units, int threads) {
        UNSLOTH_LAUNCH((int8_rows_kernel<Maker, decltype(of_a_thread)::value>), static_cast<unsigned>(rows), threads, 0,
                       stream, maker, units, columns, out);
    });
}

}  // namespace

void quantize_rows_int8(const ConstMatrix& x, int64_t rows, int64_t columns, const Int8Rows& out, cudaStream_t stream) {
    run(CopiedRows{x}, rows, columns, out, stream);
}

void norm_forward_int8(const NormForward& params, const Int8Rows& out, cudaStream_t stream) {
    run(NormalisedRows{params}, params.shape.tokens, params.shape.columns, out, stream);
}

void swiglu_forward_int8(const SwigluForward& params, const Int8Rows& out, cudaStream_t stream) {
    run(SwigluRows{params}, params.tokens, params.columns, out, stream);
}

void swiglu_backward_int8(const SwigluBackward& params, bool codes_alone, const Int8Rows& out, cudaStream_t stream) {
    run(SwigluGradientRows{params, codes_alone}, params.tokens, 2 * params.columns, out, stream);
}

void rope_apply_int8(const RopeApply& params, int64_t columns, bool codes_alone, const Int8Rows& out,
                     cudaStream_t stream) {
    run(RotatedRows{params, static_cast<int>(params.pairs / width), codes_alone}, params.tokens, columns, out, stream);
}

}  // namespace unsloth::kernels
