// Q8_0, Q4_0, MXFP4, Q5_0 and Q5_1: blocks of 32 with one scale; Q5_1 with a minimum too.
#include <algorithm>
#include <cmath>

#include "formats/gguf/quantizers.h"
#include "unsloth/spec/serve_grid.h"

namespace unsloth::formats::gguf {
namespace {

/// The value of largest magnitude, with its sign; of equal ones the first.
float extreme_of(const float* x) {
    float largest = 0, extreme = 0;
    for (int i = 0; i < small_block; ++i) {
        const float magnitude = std::fabs(x[i]);
        if (magnitude > largest) largest = magnitude, extreme = x[i];
    }
    return extreme;
}

/// The extreme value takes code 0 (that of -2^(bits-1)), others the nearest.
template <int bits>
void signed_codes(const float* x, uint8_t* codes, float* scale) {
    constexpr int half = 1 << (bits - 1);
    *scale = extreme_of(x) / -static_cast<float>(half);
    const float inverse = spec::inverse_of_scale(*scale);
    for (int i = 0; i < small_block; ++i) codes[i] = static_cast<uint8_t>(spec::signed_code<bits>(x[i], inverse));
}

/// 32 codes of five bits: the low four in pairs, the high ones in 32 bits.
void pack_five_bits(const uint8_t* codes, uint8_t* high_bits, uint8_t* low_bits) {
    uint32_t high = 0;
    for (int i = 0; i < small_block; ++i) high |= static_cast<uint32_t>(codes[i] >> 4) << i;
    std::memcpy(high_bits, &high, sizeof high);
    for (int i = 0; i < 16; ++i) low_bits[i] = static_cast<uint8_t>((codes[i] & 15) | (codes[i + 16] & 15) << 4);
}

}  // namespace

void quantize_q8_0(const float* x, int64_t blocks, uint8_t* out) {
    for (int64_t b = 0; b < blocks; ++b, x += small_block, out += q8_0::bytes) {
        float largest = 0;
        for (int i = 0; i < small_block; ++i) largest = std::max(largest, std::fabs(x[i]));
        const float scale = largest / 127.0F;
        const float inverse = spec::inverse_of_scale(scale);
        store_half(out + q8_0::scale, scale);
        for (int i = 0; i < small_block; ++i)
            out[q8_0::codes + i] = static_cast<uint8_t>(spec::q8_0_code(x[i], inverse));
    }
}

void quantize_q4_0(const float* x, int64_t blocks, uint8_t* out) {
    for (int64_t b = 0; b < blocks; ++b, x += small_block, out += q4_0::bytes) {
        uint8_t codes[small_block];
        float scale;
        signed_codes<4>(x, codes, &scale);
        store_half(out + q4_0::scale, scale);
        for (int i = 0; i < 16; ++i) out[q4_0::codes + i] = static_cast<uint8_t>(codes[i] | codes[i + 16] << 4);
    }
}

void quantize_mxfp4(const float* x, int64_t blocks, uint8_t* out) {
    for (int64_t b = 0; b < blocks; ++b, x += small_block, out += mxfp4::bytes) {
        const float largest = std::fabs(extreme_of(x));
        const float inverse = spec::grid_scale(spec::ServeGrid::mxfp4, largest, 0.0F).inverse;
        out[mxfp4::exponent] = static_cast<uint8_t>(spec::mxfp4_exponent(largest) + 127);
        uint8_t codes[small_block];
        for (int i = 0; i < small_block; ++i)
            codes[i] = static_cast<uint8_t>(spec::mxfp4_magnitude(x[i] * inverse) | (std::signbit(x[i]) ? 8 : 0));
        for (int i = 0; i < 16; ++i) out[mxfp4::codes + i] = static_cast<uint8_t>(codes[i] | codes[i + 16] << 4);
    }
}

void quantize_q5_0(const float* x, int64_t blocks, uint8_t* out) {
    for (int64_t b = 0; b < blocks; ++b, x += small_block, out += q5_0::bytes) {
        uint8_t codes[small_block];
        float scale;
        signed_codes<5>(x, codes, &scale);
        store_half(out + q5_0::scale, scale);
        pack_five_bits(codes, out + q5_0::high, out + q5_0::codes);
    }
}

void quantize_q5_1(const float* x, int64_t blocks, uint8_t* out) {
    for (int64_t b = 0; b < blocks; ++b, x += small_block, out += q5_1::bytes) {
        const auto [low, high] = std::minmax_element(x, x + small_block);
        const float min = *low, scale = (*high - min) / 31.0F;
        const float inverse = spec::inverse_of_scale(scale);
        store_half(out + q5_1::scale, scale);
        store_half(out + q5_1::min, min);
        uint8_t codes[small_block];
        for (int i = 0; i < small_block; ++i)
            codes[i] = static_cast<uint8_t>(std::min(31, static_cast<int>((x[i] - min) * inverse + 0.5F)));
        pack_five_bits(codes, out + q5_1::high, out + q5_1::codes);
    }
}

}  // namespace unsloth::formats::gguf
