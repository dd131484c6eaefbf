// Rounding to a grid's values, in few instructions: the bits of spec::on_grid and spec::nf4_threshold.
#pragma once

#include <cmath>

#include "kernels/common/device.cuh"
#include "kernels/quant4_scales.cuh"
#include "unsloth/spec/serve_grid.h"

namespace unsloth::kernels {

inline constexpr float whole_from = 8388608.0F;  // 2^23: sums with it are rounded to whole numbers, ties to even

/// The number of `kept` bits of mantissa (and the leading one) nearest to m, ties to even; steps are those of `least`
/// below it. m >= 0, not large.
template <int kept>
__device__ __forceinline__ float with_bits_kept(float m, float least) {
    const uint32_t power = max(__float_as_uint(m), __float_as_uint(least)) & spec::exponent_bits;
    const float shift = __fmul_rn(__uint_as_float(power), whole_from / static_cast<float>(1 << kept));
    return __fadd_rn(__fadd_rn(m, shift), -shift);
}

/// Of a block that is finite; with a scale of NaN, NaN.
template <spec::ServeGrid kGrid>
__device__ __forceinline__ float to_grid(float x, const spec::GridScale& block) {
    if constexpr (kGrid == spec::ServeGrid::q8_0) {
        const float value = __fmul_rn(x, block.inverse), magnitude = fabsf(value);
        float whole = __fadd_rn(__fadd_rn(magnitude, whole_from), -whole_from);
        if (__fadd_rn(magnitude, -whole) == 0.5F) whole = __fadd_rn(whole, 1.0F);  // ties go away from zero
        return __fmaf_rn(block.scale, copysignf(whole, value), 0.0F);  // the sum makes -0 to 0, as a code does
    } else if constexpr (kGrid == spec::ServeGrid::q4_0) {
        const float shifted = __fadd_rn(__fmul_rn(x, block.inverse), 8.5F);
        const float code = fminf(__fadd_rn(__fadd_rz(shifted, whole_from), -whole_from), 15.0F);
        return __fmul_rn(block.scale, __fadd_rn(code, -8.0F));
    } else {
        static_assert(kGrid == spec::ServeGrid::mxfp4);
        const float rounded = fminf(with_bits_kept<1>(fabsf(__fmul_rn(x, block.inverse)), 1.0F), 6.0F);
        return __fmul_rn(x < 0 ? -rounded : rounded, block.scale);
    }
}

/// Of a row: x / scale rounded to e4m3, times the scale.
struct Fp8Row {
    float scale, lift, lifted, inverse;  ///< of the quotient both parts are lifted by a power of two

    __device__ explicit Fp8Row(uint32_t largest) {
        const bool finite = largest < spec::exponent_bits;
        scale = finite ? spec::grid_scale(spec::ServeGrid::fp8, __uint_as_float(largest), 0.0F).scale
                       : __uint_as_float(0x7FC00000U);
        lift = scale < 0x1p-60F ? 0x1p64F : 1.0F;  // so that no remainder that counts is subnormal
        lifted = __fmul_rn(scale, lift);
        inverse = __frcp_rn(lifted);
    }
    /// Two corrections by exact remainders make a product with the inverse the rounded quotient (Markstein, 1990).
    /// Where a remainder may lose bits, the quotient is far below e4m3's least value.
    __device__ __forceinline__ float quotient(float x) const {
        x = __fmul_rn(x, lift);
        float q = __fmul_rn(x, inverse);
#pragma unroll
        for (int i = 0; i < 2; ++i) q = __fmaf_rn(__fmaf_rn(-q, lifted, x), inverse, q);
        return q;
    }
    __device__ __forceinline__ float rounded(float x) const {
        const float m = with_bits_kept<3>(fminf(fabsf(quotient(x)), 448.0F), 0.015625F);
        return __fmul_rn(x < 0 ? -m : m, scale);
    }
};

/// The code of NF4 by cells of 1/15 around multiples of it, of which each has one threshold or none. By cell modulo 32.
struct Nf4Cells {
    float threshold[32];
    uint32_t below[32];  ///< thresholds of the cells before it
};
inline constexpr float cells_per_unit = 15.0F, cell_shift = 12582912.0F;  // 1.5 · 2^23

inline Nf4Cells nf4_cells() {
    Nf4Cells made;
    int of_threshold[15];
    for (int i = 0; i < 15; ++i)
        of_threshold[i] = static_cast<int>(std::fma(spec::nf4_threshold[i], cells_per_unit, cell_shift) - cell_shift);
    for (int cell = -16; cell < 16; ++cell) {
        made.threshold[cell & 31] = INFINITY;
        made.below[cell & 31] = 0;
        for (int i = 0; i < 15; ++i) {
            if (of_threshold[i] == cell) made.threshold[cell & 31] = spec::nf4_threshold[i];
            made.below[cell & 31] += of_threshold[i] < cell ? 1 : 0;
        }
    }
    return made;
}

/// In shared memory: all threads call copy_cells, and see all of them after it.
__device__ __forceinline__ void copy_cells(const Nf4Cells& from, Nf4Cells& shared) {
    if (threadIdx.x < 32) {
        shared.threshold[threadIdx.x] = from.threshold[threadIdx.x];
        shared.below[threadIdx.x] = from.below[threadIdx.x];
    }
    __syncthreads();
}

/// x: -1 to 1.
__device__ __forceinline__ uint32_t nf4_code_in(const Nf4Cells& cells, float x) {
    const uint32_t cell = __float_as_uint(__fmaf_rn(x, cells_per_unit, cell_shift)) & 31U;
    return cells.below[cell] + (x > cells.threshold[cell] ? 1U : 0U);
}

}  // namespace unsloth::kernels
