// What every kernel that makes e4m3 codes shares: the scale of a row's amax (largest magnitude), and eight codes at a
// time. The format: Micikevicius et al., "FP8 Formats for Deep Learning" (2022).
#pragma once

#include <cuda_fp8.h>

#include "kernels/row_makers.cuh"

namespace unsloth::kernels {

/// include/unsloth/ops/coded_rows.h's rule. Anything that is not finite stays so.
__device__ __forceinline__ float fp8_scale(float amax) {
    const float scale = __fdiv_rn(amax, 448.f);
    if (amax == 0.f) return 1.f;
    return scale < least_scale ? least_scale : scale;
}

__device__ __forceinline__ float fp8_inverse(float scale) {
    return __frcp_rn(scale);
}

__device__ __forceinline__ uint2 fp8_encode(const Bf16x8& values, float inverse) {
    uint32_t pairs[pack_width / 2];
#pragma unroll
    for (int i = 0; i < pack_width / 2; ++i) {
        const float2 pair = {to_float(values.v[2 * i]) * inverse, to_float(values.v[2 * i + 1]) * inverse};
        pairs[i] = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
    }
    return {pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16};
}

__device__ __forceinline__ Bf16x8 fp8_decode(const uint2& codes, float scale) {
    Bf16x8 values;
    const uint32_t words[2] = {codes.x, codes.y};
#pragma unroll
    for (int i = 0; i < pack_width; ++i) {
        const auto code = static_cast<__nv_fp8_storage_t>(words[i / 4] >> (8 * (i % 4)));
        values.v[i] = __float2bfloat16_rn(__half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3))) * scale);
    }
    return values;
}

}  // namespace unsloth::kernels
