// 16-bit floats on the host: bfloat16 and IEEE 754 binary16, as bit patterns. C++17, no dependency.
// Rounding is to nearest, ties to even; a NaN stays a (quiet) NaN; overflow becomes an infinity.
#pragma once

#include <cstdint>
#include <cstring>

namespace unsloth {

inline float float_from_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline uint32_t bits_of_float(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float bf16_to_f32(uint16_t bits) {
    return float_from_bits(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t f32_to_bf16(float value) {
    const uint32_t bits = bits_of_float(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x0040u);
    return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

inline float f16_to_f32(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    const uint32_t exponent = (half >> 10) & 0x1Fu;
    const uint32_t mantissa = half & 0x3FFu;
    if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in fp32
        const float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
        return float_from_bits(sign | bits_of_float(magnitude));
    }
    if (exponent == 0x1F) return float_from_bits(sign | 0x7F800000u | (mantissa << 13) | (mantissa ? 0x00400000u : 0u));
    return float_from_bits(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

inline uint16_t f32_to_f16(float value) {
    const uint32_t bits = bits_of_float(value);
    const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
    if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // 65520 and above round to infinity
    if (magnitude < 0x38800000u) {
        // Below 2^-14: adding 0.5 shifts the value so that the fp32 addition rounds it to a multiple of 2^-24.
        const float shifted = float_from_bits(magnitude) + 0.5f;
        return static_cast<uint16_t>(sign | (bits_of_float(shifted) - 0x3F000000u));
    }
    const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

}  // namespace unsloth
