// e4m3 codes of keys and values on the device, and their powers of two (include/unsloth/ops/kv_cache.h).
#pragma once

#include "kernels/common/device.cuh"

namespace unsloth::kernels {

/// Bits of an fp32's or bf16's exponent stand for 2^(bits - 127), 255 for what is not finite.
__device__ __forceinline__ float power_of_two(int bits) {
    return __uint_as_float(static_cast<uint32_t>(min(bits, 255)) << 23);
}

/// Exponent bits for heads whose largest magnitude has these 16 bits in bf16: 448 is 2^8 * 1.75, whose mantissa is 96.
__device__ __forceinline__ int key_exponent(uint32_t amax) {
    if (amax >= 0x7F80u) return 255;
    return max(static_cast<int>((amax + 31) >> 7) - 8, 1);
}

/// Codes 2 i and 2 i + 1 of a word as bf16, times 2^key_code_shift: sign, exponent and mantissa where bf16 has them.
inline constexpr int key_code_shift = 7 - 127;
__device__ __forceinline__ uint32_t key_code_pair(uint32_t codes, int i) {
    const uint32_t spread = __byte_perm(codes, 0, i == 0 ? 0x1404 : 0x3424);  // each in the upper half of 16 bits
    return (spread & 0x80008000u) | (spread >> 4 & 0x07F007F0u);
}

}  // namespace unsloth::kernels
