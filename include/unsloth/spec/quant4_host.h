// 4-bit block-wise quantisation on the host: the arithmetic once, for ranges, so that callers choose their
// threads.
//
// Formulas: spec/quant4.h. Every product and sum is rounded to fp32 (never fused), bit-exact with
// bitsandbytes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "unsloth/spec/quant4.h"

namespace unsloth::spec {

/// What the codes of block `block` are multiplied with: its fp32 maximum, double quantisation undone, or MXFP4's scale.
inline float block_absmax(const Quant4View& weight, int64_t block) {
    if (weight.exponents != nullptr) return std::ldexp(1.0F, weight.exponents[block] - 127);
    if (!weight.nested()) return weight.absmax_f32[block];
    const float product =
        weight.nested_map[weight.absmax_u8[block]] * weight.nested_absmax[block / quant4_nested_block];
    return product + weight.nested_offset;
}

/// out[i - first] = round_to_T(element i of the flattened weight) for first <= i < last. `convert`: float ->
/// T. A block has 16 possible values: they are computed once and looked up.
template <class T, class Convert>
void dequantize_4bit_range(const Quant4View& weight, int64_t first, int64_t last, T* out, Convert convert) {
    int64_t i = first;
    while (i < last) {
        const int64_t block = i / weight.block();
        const int64_t stop = std::min(last, (block + 1) * weight.block());
        const float absmax = block_absmax(weight, block);
        T values[16];
        for (int code = 0; code < 16; ++code) values[code] = convert(weight.code[code] * absmax);
        if (i % 2 == 1) *out++ = values[weight.packed[i++ / 2] & 15];
        for (; i + 2 <= stop; i += 2, out += 2) {
            const uint8_t pair = weight.packed[i / 2];
            out[0] = values[pair >> 4];
            out[1] = values[pair & 15];
        }
        if (i < stop) *out++ = values[weight.packed[i++ / 2] >> 4];
    }
}

/// Quantises blocks [first_block, last_block) of the flattened weight w (`elements` in all; w points at
/// element first_block * 64). `packed` and `absmax` are the whole weight's arrays. A block of zeros
/// (or so small that 1 / absmax overflows) takes the code of zero. A value that is not finite makes its
/// block's absmax infinite.
void quantize_4bit_blocks(Quant4Type type, const float* w, int64_t elements, int64_t first_block, int64_t last_block,
                          uint8_t* packed, float* absmax);

/// Quantises block maxima for the second time: offset = their mean, codes[b] = the nearest entry of the
/// signed dynamic map to (absmax[b] - offset) / nested_absmax[b / 256]. Returns the offset (not finite when
/// an absmax is not).
float quantize_absmax(const float* absmax, int64_t blocks, uint8_t* codes, float* nested_absmax);

}  // namespace unsloth::spec
