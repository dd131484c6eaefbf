// What a softmax between two products by tensor cores takes: powers of 2, and pairs rounded to 16 bits.
#pragma once

#include "kernels/common/device.cuh"

namespace unsloth::kernels {

/// 2 to the x, to 2 units in the last place; results below 2^-126 are 0.
__device__ __forceinline__ float ex2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// Two of a 16-bit type in a 32-bit word, the first in its low half.
template <class T>
__device__ __forceinline__ uint32_t pack_two(float low, float high);
template <>
__device__ __forceinline__ uint32_t pack_two<__nv_bfloat16>(float low, float high) {
    return pack_bf16x2(low, high);
}
template <>
__device__ __forceinline__ uint32_t pack_two<__half>(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
}

}  // namespace unsloth::kernels
