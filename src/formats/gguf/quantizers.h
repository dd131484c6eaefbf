// One function a family of types; see ggml_types.h. `blocks` blocks are read at `x` and written at `out`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "unsloth/core/half.h"

namespace unsloth::formats::gguf {

inline constexpr int small_block = 32;   ///< Q4_0, Q5_0, Q5_1, Q8_0
inline constexpr int super_block = 256;  ///< the K types

// Bytes of a block and the offsets of its parts.
namespace q4_0 {
inline constexpr int scale = 0, codes = 2, bytes = 18;
}
namespace q5_0 {
inline constexpr int scale = 0, high = 2, codes = 6, bytes = 22;
}
namespace q5_1 {
inline constexpr int scale = 0, min = 2, high = 4, codes = 8, bytes = 24;
}
namespace q8_0 {
inline constexpr int scale = 0, codes = 2, bytes = 34;
}
namespace mxfp4 {
inline constexpr int exponent = 0, codes = 1, bytes = 17;
}
namespace q4_k {
inline constexpr int scale = 0, min = 2, packed = 4, codes = 16, bytes = 144;
}
namespace q5_k {
inline constexpr int scale = 0, min = 2, packed = 4, high = 16, codes = 48, bytes = 176;
}
namespace q6_k {
inline constexpr int low = 0, high = 128, scales = 192, scale = 208, bytes = 210;
}

void quantize_q8_0(const float* x, int64_t blocks, uint8_t* out);
void quantize_q4_0(const float* x, int64_t blocks, uint8_t* out);
/// As spec/serve_grid.h rounds: the nearest code, ties to even (ggml's takes the one of lower number).
void quantize_mxfp4(const float* x, int64_t blocks, uint8_t* out);
void quantize_q5_0(const float* x, int64_t blocks, uint8_t* out);
void quantize_q5_1(const float* x, int64_t blocks, uint8_t* out);
void quantize_q4_k(const float* x, int64_t blocks, uint8_t* out);
void quantize_q5_k(const float* x, int64_t blocks, uint8_t* out);
void quantize_q6_k(const float* x, int64_t blocks, uint8_t* out);

void dequantize_q8_0(const uint8_t* in, int64_t blocks, float* out);
void dequantize_q4_0(const uint8_t* in, int64_t blocks, float* out);
void dequantize_mxfp4(const uint8_t* in, int64_t blocks, float* out);
void dequantize_q5_0(const uint8_t* in, int64_t blocks, float* out);
void dequantize_q5_1(const uint8_t* in, int64_t blocks, float* out);
void dequantize_q4_k(const uint8_t* in, int64_t blocks, float* out);
void dequantize_q5_k(const uint8_t* in, int64_t blocks, float* out);
void dequantize_q6_k(const uint8_t* in, int64_t blocks, float* out);

inline void store_half(uint8_t* at, float value) {
    const uint16_t half = f32_to_f16(value);
    std::memcpy(at, &half, sizeof half);
}
inline float load_half(const uint8_t* at) {
    uint16_t half;
    std::memcpy(&half, at, sizeof half);
    return f16_to_f32(half);
}

/// Eight 6-bit scales and eight 6-bit minima in twelve bytes: the first four of each take the low bits of a byte. The
/// last four are in nibbles (scale low, minimum high), their upper two bits on top of the first four's bytes.
struct SixBits {
    uint8_t scale, min;
};
inline SixBits unpack_six_bits(const uint8_t* packed, int j) {
    if (j < 4) return {static_cast<uint8_t>(packed[j] & 63), static_cast<uint8_t>(packed[j + 4] & 63)};
    return {static_cast<uint8_t>((packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4),
            static_cast<uint8_t>((packed[j + 4] >> 4) | (packed[j] >> 6) << 4)};
}

}  // namespace unsloth::formats::gguf
