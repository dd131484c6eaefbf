// 4-bit block-wise quantisation as bitsandbytes stores it, and MXFP4: the codes, and what describes one weight.
// C++17: shared by host code and kernels. Source: Dettmers et al., "QLoRA" (2023), and bitsandbytes' files; OCP,
// "Microscaling Formats (MX) Specification" (2023).
#pragma once

#include <cstdint>

namespace unsloth::spec {

inline constexpr int quant4_block = 64;          ///< elements an absmax covers, over the flattened weight
inline constexpr int quant4_nested_block = 256;  ///< absmax values a nested absmax covers
inline constexpr int mxfp4_block = 32;           ///< elements of a row that an exponent of MXFP4 covers

/// The NF4 code: quantiles of a normal distribution, ascending.
inline constexpr float nf4_code[16] = {-1.0F,
                                       -0.6961928009986877F,
                                       -0.5250730514526367F,
                                       -0.39491748809814453F,
                                       -0.28444138169288635F,
                                       -0.18477343022823334F,
                                       -0.09105003625154495F,
                                       0.0F,
                                       0.07958029955625534F,
                                       0.16093020141124725F,
                                       0.24611230194568634F,
                                       0.33791524171829224F,
                                       0.44070982933044434F,
                                       0.5626170039176941F,
                                       0.7229568362236023F,
                                       1.0F};

/// The FP4 code of bitsandbytes: sign, then magnitudes of one exponent and one subnormal, by number and not by size.
inline constexpr float fp4_code[16] = {0.0F,
                                       0.005208333488553762F,
                                       0.6666666865348816F,
                                       1.0F,
                                       0.3333333432674408F,
                                       0.5F,
                                       0.1666666716337204F,
                                       0.25F,
                                       0.0F,
                                       -0.005208333488553762F,
                                       -0.6666666865348816F,
                                       -1.0F,
                                       -0.3333333432674408F,
                                       -0.5F,
                                       -0.1666666716337204F,
                                       -0.25F};
inline constexpr uint8_t fp4_ascending[16] = {11, 10, 13, 12, 15, 14, 9, 0, 8, 1, 6, 7, 4, 5, 2, 3};  ///< by value
/// Midpoints of neighbours by value: x / absmax takes the upper one when it is strictly greater.
inline constexpr float fp4_threshold[15] = {
    -0.8333333730697632F,   -0.5833333730697632F, -0.4166666865348816F,    -0.2916666865348816F,
    -0.2083333432674408F,   -0.0859375F,          -0.0026041667442768812F, 0.0F,
    0.0026041667442768812F, 0.0859375F,           0.2083333432674408F,     0.2916666865348816F,
    0.4166666865348816F,    0.5833333730697632F,  0.8333333730697632F};

/// The code of MXFP4 (E2M1): a sign, two bits of exponent, one of mantissa. Exact in every type that is computed with.
inline constexpr float mxfp4_code[16] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                         -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

enum class Quant4Type : uint8_t { nf4, fp4 };
constexpr const char* name_of(Quant4Type type) {
    return type == Quant4Type::nf4 ? "nf4" : "fp4";
}
constexpr const float* code_of(Quant4Type type) {
    return type == Quant4Type::nf4 ? nf4_code : fp4_code;
}

/// Of NF4, a value x / absmax takes the upper code when it is strictly greater than the threshold between two.
inline constexpr float nf4_threshold[15] = {
    -0.8480964004993439F,  -0.6106329262256622F,   -0.4599952697753906F, -0.33967943489551544F, -0.23460740596055984F,
    -0.13791173323988914F, -0.045525018125772476F, 0.03979014977812767F, 0.1202552504837513F,   0.2035212516784668F,
    0.2920137718319893F,   0.3893125355243683F,    0.5016634166240692F,  0.6427869200706482F,   0.8614784178118011F};

/// One 4-bit weight [rows, cols]: pointers to host or device memory, not owned.
/// Element i (row-major) has code (packed[i/2] >> (i even ? 4 : 0)) & 15 and absmax of block i/64:
/// absmax_f32[b], or nested: nested_map[absmax_u8[b]] * nested_absmax[b/256] + nested_offset
/// (multiply, round, then add: no fused multiply-add). Of MXFP4, whose columns are a multiple of 32, it is 2^(e - 127),
/// e the exponent of block i/32: 0 to 254.
struct Quant4View {
    const uint8_t* packed = nullptr;
    const float* code = nullptr;           ///< [16], ascending for NF4; FP4 and MXFP4 have their own order
    const float* absmax_f32 = nullptr;     ///< plain; nullptr when nested
    const uint8_t* absmax_u8 = nullptr;    ///< nested
    const float* nested_map = nullptr;     ///< [256]
    const float* nested_absmax = nullptr;  ///< [ceil(blocks / 256)]
    float nested_offset = 0.0F;
    const uint8_t* exponents = nullptr;  ///< MXFP4: [elements / 32], instead of block maxima
    int64_t rows = 0;
    int64_t cols = 0;

    constexpr int64_t elements() const { return rows * cols; }
    constexpr int block() const { return exponents != nullptr ? mxfp4_block : quant4_block; }
    constexpr int64_t blocks() const { return (elements() + block() - 1) / block(); }
    constexpr bool nested() const { return absmax_u8 != nullptr; }
};

}  // namespace unsloth::spec
