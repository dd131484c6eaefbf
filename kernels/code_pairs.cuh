// 8-bit codes as operands of 16-bit products: pairs of bf16 that have the codes' values, bit for bit.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace unsloth::kernels {

/// a b + c of pairs of bf16, rounded once: of these operations alone cards before 9.0 have it.
__device__ __forceinline__ uint32_t fma_pairs(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t result;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    return result;
}
__device__ __forceinline__ uint32_t multiply_pairs(uint32_t a, uint32_t b) {
    constexpr uint32_t minus_zero = 0x80008000u;  // so that zeros keep their signs
    return fma_pairs(a, b, minus_zero);
}

/// (a & mask) | bits, in one instruction: of two that are constants the compiler makes two.
__device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t mask, uint32_t bits) {
    uint32_t result;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(result) : "r"(a), "r"(mask), "r"(bits));
    return result;
}

struct Int8Codes {
    /// Bytes 0 and 2. A code is its low seven bits, less 128 where the eighth is set: two numbers from 128 to 256,
    /// which bf16 holds with a step of 1 or 2, differ by it.
    static __device__ __forceinline__ uint32_t even_bytes(uint32_t codes) {
        const uint32_t low = and_or(codes, 0x007F007Fu, 0x43004300u), sign = and_or(codes, 0x00800080u, 0x43004300u);
        constexpr uint32_t minus_one = 0xBF80BF80u;
        return fma_pairs(sign, minus_one, low);
    }
};

struct E4m3Codes {
    /// Bytes 0 and 2. Exponent and mantissa where bf16 has its own, subnormal codes too; what is left of the exponents'
    /// biases, 127 - 7, is a factor.
    static __device__ __forceinline__ uint32_t even_bytes(uint32_t codes) {
        const uint32_t bits = and_or(codes << 8, 0x80008000u, codes << 4 & 0x07F007F0u);
        constexpr uint32_t two_to_120 = 0x7B807B80u;
        return multiply_pairs(bits, two_to_120);
    }
};

/// What of a word's four codes, side by side along the reduction, are the two registers of an operand of mma.sync:
/// bytes 0 and 1, and bytes 2 and 3.
template <class Codes>
__device__ __forceinline__ uint32_t low_pair(uint32_t codes) {
    return Codes::even_bytes(__byte_perm(codes, 0, 0x4140));
}
template <class Codes>
__device__ __forceinline__ uint32_t high_pair(uint32_t codes) {
    return Codes::even_bytes(__byte_perm(codes, 0, 0x4342));
}

/// 1 / x of two powers of two in bf16, which are neither subnormal nor the largest.
__device__ __forceinline__ uint32_t inverse_powers(uint32_t pair) {
    return 0x7F007F00u - pair;
}

template <class X>
inline constexpr bool is_codes = false;
template <>
inline constexpr bool is_codes<Int8Codes> = true;
template <>
inline constexpr bool is_codes<E4m3Codes> = true;

}  // namespace unsloth::kernels
