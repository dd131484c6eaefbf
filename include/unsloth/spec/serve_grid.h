// The grids of values that a served file holds, and how a value is rounded to them. C++17: shared by host code and
// kernels, so that training, merging and exporting give the same bits.
//
// Sources: bitsandbytes (nf4: spec/quant4.h); ggml-quants.c (q8_0, q4_0); OCP, "Microscaling Formats (MX)
// Specification" (2023), 6.3 (mxfp4); OCP, "OFP8" (2023) for e4m3, with a scale for each output as compressed-tensors'
// strategy "channel" has it (fp8). Every product and sum is rounded to fp32, never fused.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif

#include "unsloth/core/half.h"
#include "unsloth/spec/host_device.h"

namespace unsloth::spec {

enum class ServeGrid : uint8_t { none, nf4, q8_0, q4_0, mxfp4, fp8 };

constexpr const char* name_of(ServeGrid grid) {
    switch (grid) {
        case ServeGrid::none:
            return "none";
        case ServeGrid::nf4:
            return "nf4";
        case ServeGrid::q8_0:
            return "q8_0";
        case ServeGrid::q4_0:
            return "q4_0";
        case ServeGrid::mxfp4:
            return "mxfp4";
        case ServeGrid::fp8:
            return "fp8";
    }
    return "?";
}

inline constexpr int grid_block = 32;  ///< values of a row that share a scale in q8_0, q4_0 and mxfp4

/// Whether rows are divided into blocks of grid_block values. nf4's blocks go over the ends of rows.
constexpr bool has_row_blocks(ServeGrid grid) {
    return grid == ServeGrid::q8_0 || grid == ServeGrid::q4_0 || grid == ServeGrid::mxfp4;
}

/// What the columns of a matrix must be a multiple of.
constexpr int columns_of(ServeGrid grid) {
    return has_row_blocks(grid) ? grid_block : 8;
}

UNSLOTH_HOST_DEVICE_FUNCTION uint32_t bits_of(float x) {
#ifdef __CUDA_ARCH__
    return __float_as_uint(x);
#else
    uint32_t bits = 0;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
#endif
}
UNSLOTH_HOST_DEVICE_FUNCTION float float_of_bits(uint32_t bits) {
#ifdef __CUDA_ARCH__
    return __uint_as_float(bits);
#else
    float x = 0;
    std::memcpy(&x, &bits, sizeof x);
    return x;
#endif
}
inline constexpr uint32_t exponent_bits = 0x7F800000U;  ///< of fp32

UNSLOTH_HOST_DEVICE_FUNCTION float rounded_product(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fmul_rn(a, b);
#else
    return a * b;
#endif
}
UNSLOTH_HOST_DEVICE_FUNCTION float rounded_sum(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fadd_rn(a, b);
#else
    return a + b;
#endif
}
UNSLOTH_HOST_DEVICE_FUNCTION float rounded_quotient(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fdiv_rn(a, b);
#else
    return a / b;
#endif
}
UNSLOTH_HOST_DEVICE_FUNCTION float rounded_to_half(float value) {
#ifdef __CUDA_ARCH__
    return __half2float(__float2half_rn(value));
#else
    return f16_to_f32(f32_to_f16(value));
#endif
}

/// 1 / scale; 0 for scales of zeros and those so small that the quotient overflows.
UNSLOTH_HOST_DEVICE_FUNCTION float inverse_of_scale(float scale) {
    const float inverse = rounded_quotient(1.0F, scale);
    return inverse <= 3.402823466e38F && inverse >= -3.402823466e38F ? inverse : 0.0F;
}

/// Q8_0's code, -127 to 127: std::round in a form that compilers turn into vector instructions; exact, for magnitudes
/// stay below 2^23.
UNSLOTH_HOST_DEVICE_FUNCTION int q8_0_code(float x, float inverse) {
    const float value = rounded_product(x, inverse), magnitude = value < 0 ? -value : value;
    const int whole = static_cast<int>(magnitude);
    const int rounded = whole + static_cast<int>(magnitude - static_cast<float>(whole) >= 0.5F);
    return value < 0 ? -rounded : rounded;
}

/// The code of Q4_0 (`bits` 4) or Q5_0, 0 to 2^bits - 1; 2^(bits - 1) means 0. The product is rounded before the sum:
/// ggml built for machines that fuse the two can give another code where a value is halfway between two.
template <int bits>
UNSLOTH_HOST_DEVICE_FUNCTION int signed_code(float x, float inverse) {
    constexpr int half = 1 << (bits - 1);
    const int code = static_cast<int>(rounded_sum(rounded_product(x, inverse), static_cast<float>(half) + 0.5F));
    return code < 0 ? 0 : code > 2 * half - 1 ? 2 * half - 1 : code;
}

/// The exponent that MXFP4 gives a block: the largest magnitude's, less that of its largest code (4 = 2^2); at least
/// -126, so that no scale is subnormal.
UNSLOTH_HOST_DEVICE_FUNCTION int mxfp4_exponent(float largest) {
    const int exponent = static_cast<int>(bits_of(largest) >> 23) - 129;  // fp32's own, less its bias and 2
    return exponent < -126 ? -126 : exponent;
}
/// The number of the magnitude in MXFP4's code that is nearest to |x|, ties to the even one.
UNSLOTH_HOST_DEVICE_FUNCTION int mxfp4_magnitude(float x) {
    const float m = x < 0 ? -x : x;
    return int{m > 0.25F} + int{m >= 0.75F} + int{m > 1.25F} + int{m >= 1.75F} + int{m > 2.5F} + int{m >= 3.5F} +
           int{m > 5.0F};
}

/// 2^floor(log2(x)), x a normal number above 0.
UNSLOTH_HOST_DEVICE_FUNCTION float power_of_two_below(float x) {
    return float_of_bits(bits_of(x) & exponent_bits);
}
/// The e4m3 value nearest to x, ties to even, at most 448.
UNSLOTH_HOST_DEVICE_FUNCTION float rounded_to_e4m3(float x) {
    const float m = x < 0 ? -x : x;
    if (m >= 448.0F) return x < 0 ? -448.0F : 448.0F;
    constexpr float least = 0.015625F;  // 2^-6, the least normal value
    const float top = m < least ? least : power_of_two_below(m);
    // A multiple of top / 8: adding 2^23 of them rounds to nearest even.
    const float shift = top * 1048576.0F;
    const float rounded = rounded_sum(rounded_sum(m, shift), -shift);
    return x < 0 ? -rounded : rounded;
}

// What one value becomes, given its block's scale.

struct GridScale {
    float scale = 0, inverse = 0;  ///< what codes are multiplied by; what values are, or with fp8 divided by
};
/// `largest`: the block's largest magnitude, of fp8 its row's; `extreme`: the first value of that magnitude (q4_0).
UNSLOTH_HOST_DEVICE_FUNCTION GridScale grid_scale(ServeGrid grid, float largest, float extreme) {
    if (grid == ServeGrid::q8_0) {
        const float scale = rounded_quotient(largest, 127.0F);
        return {rounded_to_half(scale), inverse_of_scale(scale)};
    }
    if (grid == ServeGrid::q4_0) {
        const float scale = rounded_quotient(extreme, -8.0F);
        return {rounded_to_half(scale), inverse_of_scale(scale)};
    }
    if (grid == ServeGrid::mxfp4) {
        const int exponent = mxfp4_exponent(largest);
        return {float_of_bits(static_cast<uint32_t>(127 + exponent) << 23),
                float_of_bits(static_cast<uint32_t>(127 - exponent) << 23)};
    }
    const float scale = rounded_quotient(largest, 448.0F);
    constexpr float least = 1.1754943508222875e-38F;  // below it a quotient could overflow
    return {scale < least ? least : scale, scale < least ? least : scale};
}
UNSLOTH_HOST_DEVICE_FUNCTION float on_grid(ServeGrid grid, float x, const GridScale& block) {
    if (grid == ServeGrid::q8_0) return rounded_product(block.scale, static_cast<float>(q8_0_code(x, block.inverse)));
    if (grid == ServeGrid::q4_0)
        return rounded_product(block.scale, static_cast<float>(signed_code<4>(x, block.inverse) - 8));
    if (grid == ServeGrid::mxfp4) {
        const int code = mxfp4_magnitude(x * block.inverse);  // a power of two: exact
        const float magnitude =
            code < 5 ? static_cast<float>(code) * 0.5F : static_cast<float>(code == 7 ? 6 : code - 2);
        return x < 0 ? -magnitude * block.scale : magnitude * block.scale;
    }
    return rounded_product(rounded_to_e4m3(rounded_quotient(x, block.inverse)), block.scale);
}

// The product B·A in fixed point. A row of B, and a column of A, are integers of up to 14 bits times a power of two.
// Each is 256 · high + low. Left out are the products of two low parts. All sums are then exact in 32 bits, so they do
// not depend on their order, and tensor cores for int8 make the bits that the host makes.

inline constexpr int64_t largest_fixed_rank = 1024;  ///< sums stay below 2^31

/// What the values of one row of B, or column of A, are multiplied by to be integers, and what the integers stand for.
struct FactorUnit {
    float per_value = 0, unit = 0;
};
/// Orders magnitudes, and puts infinities and NaN above all.
UNSLOTH_HOST_DEVICE_FUNCTION uint32_t magnitude_bits(float x) {
    return bits_of(x) & 0x7FFFFFFFU;
}
/// `largest`: of the values' magnitude_bits. Values below 2^-100 count as zeros; others than finite ones give NaN.
UNSLOTH_HOST_DEVICE_FUNCTION FactorUnit factor_unit(uint32_t largest) {
    if (largest >= exponent_bits) return {0.0F, float_of_bits(0x7FC00000U)};
    const uint32_t exponent = largest >> 23;  // + 127
    if (exponent < 27) return {};
    return {float_of_bits((267U - exponent) << 23), float_of_bits((exponent - 13U) << 23)};  // 2^13 / power of two
}
/// -2^14 to 2^14, ties to even.
UNSLOTH_HOST_DEVICE_FUNCTION int in_units(float x, const FactorUnit& unit) {
    if (unit.per_value == 0.0F) return 0;
    constexpr float shift = 12582912.0F;  // 1.5 · 2^23: sums with it have no fraction
    return static_cast<int>(rounded_sum(rounded_sum(rounded_product(x, unit.per_value), shift), -shift));
}
/// -64 to 64; the low part, value - 256 · high, is -128 to 127.
UNSLOTH_HOST_DEVICE_FUNCTION int high_part(int value) {
    return (value + 128) >> 8;
}
inline constexpr float product_units = 256.0F;  ///< that the sums below are of
/// scale · B·A of a sum of 256 · high · high + high · low + low · high, a 256th of the integers' own. a_unit: 256 times
/// that of A's column; scaled_unit: scale times that of B's row.
UNSLOTH_HOST_DEVICE_FUNCTION float low_rank_value(int sum, float a_unit, float scaled_unit) {
    return rounded_product(rounded_product(static_cast<float>(sum), a_unit), scaled_unit);
}

}  // namespace unsloth::spec
