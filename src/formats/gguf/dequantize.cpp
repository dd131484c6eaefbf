// What a reader of a GGUF file computes from its blocks. Products are rounded before sums.
#include <cmath>

#include "formats/gguf/quantizers.h"
#include "unsloth/spec/quant4.h"

namespace unsloth::formats::gguf {

void dequantize_q8_0(const uint8_t* in, int64_t blocks, float* out) {
    for (int64_t b = 0; b < blocks; ++b, in += q8_0::bytes) {
        const float scale = load_half(in + q8_0::scale);
        for (int i = 0; i < small_block; ++i)
            *out++ = scale * static_cast<float>(static_cast<int8_t>(in[q8_0::codes + i]));
    }
}

void dequantize_q4_0(const uint8_t* in, int64_t blocks, float* out) {
    for (int64_t b = 0; b < blocks; ++b, in += q4_0::bytes, out += small_block) {
        const float scale = load_half(in + q4_0::scale);
        for (int i = 0; i < 16; ++i) {
            const int pair = in[q4_0::codes + i];
            out[i] = scale * static_cast<float>((pair & 15) - 8);
            out[i + 16] = scale * static_cast<float>((pair >> 4) - 8);
        }
    }
}

void dequantize_mxfp4(const uint8_t* in, int64_t blocks, float* out) {
    for (int64_t b = 0; b < blocks; ++b, in += mxfp4::bytes, out += small_block) {
        const float scale = std::ldexp(1.0F, in[mxfp4::exponent] - 127);
        for (int i = 0; i < 16; ++i) {
            const int pair = in[mxfp4::codes + i];
            out[i] = scale * spec::mxfp4_code[pair & 15];
            out[i + 16] = scale * spec::mxfp4_code[pair >> 4];
        }
    }
}

namespace {

/// Code i of 32 with five bits.
int five_bits(const uint8_t* high_bits, const uint8_t* low_bits, int i) {
    const int low = low_bits[i % 16] >> i / 16 * 4 & 15;
    return low | (high_bits[i / 8] >> i % 8 & 1) << 4;
}

}  // namespace

void dequantize_q5_0(const uint8_t* in, int64_t blocks, float* out) {
    for (int64_t b = 0; b < blocks; ++b, in += q5_0::bytes) {
        const float scale = load_half(in + q5_0::scale);
        for (int i = 0; i < small_block; ++i)
            *out++ = scale * static_cast<float>(five_bits(in + q5_0::high, in + q5_0::codes, i) - 16);
    }
}

void dequantize_q5_1(const uint8_t* in, int64_t blocks, float* out) {
    for (int64_t b = 0; b < blocks; ++b, in += q5_1::bytes) {
        const float scale = load_half(in + q5_1::scale), min = load_half(in + q5_1::min);
        for (int i = 0; i < small_block; ++i)
            *out++ = scale * static_cast<float>(five_bits(in + q5_1::high, in + q5_1::codes, i)) + min;
    }
}

void dequantize_q4_k(const uint8_t* in, int64_t blocks, float* out) {
    for (int64_t b = 0; b < blocks; ++b, in += q4_k::bytes) {
        const float scale = load_half(in + q4_k::scale), min = load_half(in + q4_k::min);
        for (int j = 0; j < 8; ++j) {
            const SixBits six = unpack_six_bits(in + q4_k::packed, j);
            const float d = scale * static_cast<float>(six.scale), m = min * static_cast<float>(six.min);
            const uint8_t* const codes = in + q4_k::codes + j / 2 * 32;
            const int shift = j % 2 * 4;
            for (int i = 0; i < 32; ++i) *out++ = d * static_cast<float>(codes[i] >> shift & 15) - m;
        }
    }
}

void dequantize_q5_k(const uint8_t* in, int64_t blocks, float* out) {
    for (int64_t b = 0; b < blocks; ++b, in += q5_k::bytes) {
        const float scale = load_half(in + q5_k::scale), min = load_half(in + q5_k::min);
        for (int j = 0; j < 8; ++j) {
            const SixBits six = unpack_six_bits(in + q5_k::packed, j);
            const float d = scale * static_cast<float>(six.scale), m = min * static_cast<float>(six.min);
            const uint8_t* const codes = in + q5_k::codes + j / 2 * 32;
            const int shift = j % 2 * 4;
            for (int i = 0; i < 32; ++i) {
                const int code = (codes[i] >> shift & 15) | (in[q5_k::high + i] >> j & 1) << 4;
                *out++ = d * static_cast<float>(code) - m;
            }
        }
    }
}

void dequantize_q6_k(const uint8_t* in, int64_t blocks, float* out) {
    for (int64_t b = 0; b < blocks; ++b, in += q6_k::bytes) {
        const float scale = load_half(in + q6_k::scale);
        for (int i = 0; i < super_block; ++i) {
            // Halves of 128 elements; of each, four runs of 32 share 64 bytes of low and 32 of high bits.
            const int half = i / 128, run = i % 128 / 32, at = i % 32;
            const int low = in[q6_k::low + half * 64 + run % 2 * 32 + at] >> run / 2 * 4 & 15;
            const int high = in[q6_k::high + half * 32 + at] >> run * 2 & 3;
            const auto group = static_cast<float>(static_cast<int8_t>(in[q6_k::scales + i / 16]));
            *out++ = scale * group * static_cast<float>((low | high << 4) - 32);
        }
    }
}

}  // namespace unsloth::formats::gguf
