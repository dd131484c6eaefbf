// What a block's codes of a 4-bit weight are multiplied with (include/unsloth/spec/quant4.h).
#pragma once

#include <algorithm>
#include <iterator>
#include <type_traits>

#include "kernels/common/device.cuh"
#include "unsloth/spec/quant4.h"

namespace unsloth::kernels {

/// 2^(exponent - 127), exponent 0 to 254; the least is below fp32's normal numbers.
__device__ __forceinline__ float mxfp4_scale(unsigned exponent) {
    return __uint_as_float(exponent == 0 ? 0x00400000U : exponent << 23);
}

__device__ __forceinline__ float finite_magnitude(float x) {
    const float magnitude = fabsf(x);
    return magnitude <= 3.402823466e38F ? magnitude : __int_as_float(0x7F800000);  // a NaN would get lost in a maximum
}

/// 1 / x, or 0 where that is not finite, so that products with it never become a NaN.
__device__ __forceinline__ float inverse_or_zero(float x) {
    const float inverse = __fdiv_rn(1.0F, x);
    return inverse <= 3.402823466e38F ? inverse : 0.0F;
}

/// Of block `block` of `kBlock` elements. Each operation is rounded: a fused multiply-add would change bits.
template <int kBlock>
__device__ __forceinline__ float block_scale(const spec::Quant4View& weight, int64_t block) {
    static_assert(kBlock == spec::quant4_block || kBlock == spec::mxfp4_block);
    if constexpr (kBlock == spec::mxfp4_block) return mxfp4_scale(weight.exponents[block]);
    if (weight.absmax_u8 == nullptr) return weight.absmax_f32[block];
    const float product =
        __fmul_rn(weight.nested_map[weight.absmax_u8[block]], weight.nested_absmax[block / spec::quant4_nested_block]);
    return __fadd_rn(product, weight.nested_offset);
}

/// spec/quant4.h's thresholds where device code can index them.
struct Nf4Thresholds {
    float value[15];
    Nf4Thresholds() { std::copy(std::begin(spec::nf4_threshold), std::end(spec::nf4_threshold), value); }
};

/// A thread block's copy of them: indexed by lanes, shared memory is faster than a kernel's arguments. All threads call
/// it, and see all values after it.
__device__ __forceinline__ void copy_thresholds(const Nf4Thresholds& from, float (&shared)[15]) {
    if (threadIdx.x < 15) shared[threadIdx.x] = from.value[threadIdx.x];
    __syncthreads();
}

/// The code of x / largest: how many thresholds it exceeds, by halving. Of a NaN 0.
__device__ __forceinline__ unsigned nf4_code_of(const float* thresholds, float x) {
    unsigned code = x > thresholds[7] ? 8 : 0;
    code += x > thresholds[code + 3] ? 4 : 0;
    code += x > thresholds[code + 1] ? 2 : 0;
    return code + (x > thresholds[code] ? 1 : 0);
}

/// run(std::integral_constant<int, block of the weight>).
template <class Run>
void dispatch_block(const spec::Quant4View& weight, const Run& run) {
    if (weight.exponents != nullptr)
        run(std::integral_constant<int, spec::mxfp4_block>{});
    else
        run(std::integral_constant<int, spec::quant4_block>{});
}

}  // namespace unsloth::kernels
