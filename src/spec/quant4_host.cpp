#include "unsloth/spec/quant4_host.h"

#include <array>
#include <cmath>
#include <limits>

#include "unsloth/spec/dynamic_map.h"

namespace unsloth::spec {
namespace {

/// 1 / absmax, or 0 where that is not finite, so that x * inverse never becomes a NaN.
float inverse_or_zero(float absmax) {
    const float inverse = 1.0F / absmax;
    return std::isfinite(inverse) ? inverse : 0.0F;
}

uint8_t nf4_code_of(float x) {
    int code = 0;
    for (const float threshold : nf4_threshold) code += x > threshold ? 1 : 0;
    return static_cast<uint8_t>(code);
}

uint8_t fp4_code_of(float x) {
    int place = 0;
    for (const float threshold : fp4_threshold) place += x > threshold ? 1 : 0;
    return fp4_ascending[place];
}

float largest_magnitude(const float* w, int64_t n) {
    float largest = 0;
    for (int64_t i = 0; i < n; ++i) {
        const float magnitude = std::fabs(w[i]);
        if (!std::isfinite(magnitude)) return std::numeric_limits<float>::infinity();  // a NaN would not compare
        largest = std::max(largest, magnitude);
    }
    return largest;
}

/// Midpoints between neighbours of the signed dynamic map, as bitsandbytes computes them.
std::array<float, 255> signed_map_midpoints() {
    const std::array<float, 256>& map = dynamic_map_256(true);
    std::array<float, 255> midpoints{};
    for (std::size_t i = 0; i < midpoints.size(); ++i) midpoints[i] = (map[i] + map[i + 1]) * 0.5F;
    return midpoints;
}

template <class CodeOf>
void quantize_blocks(const CodeOf& code_of, const float* w, int64_t elements, int64_t first_block, int64_t last_block,
                     uint8_t* packed, float* absmax) {
    for (int64_t block = first_block; block < last_block; ++block) {
        const int64_t begin = block * quant4_block;
        const int64_t count = std::min<int64_t>(quant4_block, elements - begin);
        const float* values = w + (begin - first_block * quant4_block);
        absmax[block] = largest_magnitude(values, count);
        const float inverse = inverse_or_zero(absmax[block]);
        uint8_t* out = packed + begin / 2;
        for (int64_t i = 0; i < count; i += 2) {
            const uint8_t high = code_of(values[i] * inverse);
            const uint8_t low = code_of(i + 1 < count ? values[i + 1] * inverse : 0.0F);
            out[i / 2] = static_cast<uint8_t>(high << 4 | low);
        }
    }
}

}  // namespace

void quantize_4bit_blocks(Quant4Type type, const float* w, int64_t elements, int64_t first_block, int64_t last_block,
                          uint8_t* packed, float* absmax) {
    if (type == Quant4Type::nf4)
        return quantize_blocks(nf4_code_of, w, elements, first_block, last_block, packed, absmax);
    quantize_blocks(fp4_code_of, w, elements, first_block, last_block, packed, absmax);
}

float quantize_absmax(const float* absmax, int64_t blocks, uint8_t* codes, float* nested_absmax) {
    static const std::array<float, 255> midpoints = signed_map_midpoints();
    double sum = 0;
    for (int64_t block = 0; block < blocks; ++block) sum += static_cast<double>(absmax[block]);
    const float offset = blocks == 0 ? 0.0F : static_cast<float>(sum / static_cast<double>(blocks));
    for (int64_t begin = 0; begin < blocks; begin += quant4_nested_block) {
        const int64_t end = std::min(blocks, begin + quant4_nested_block);
        float largest = 0;
        for (int64_t block = begin; block < end; ++block)
            largest = std::max(largest, std::fabs(absmax[block] - offset));
        nested_absmax[begin / quant4_nested_block] = largest;
        const float inverse = inverse_or_zero(largest);
        for (int64_t block = begin; block < end; ++block) {
            const float x = (absmax[block] - offset) * inverse;
            // lower_bound: how many midpoints x exceeds; an x on a midpoint takes the lower entry
            codes[block] =
                static_cast<uint8_t>(std::lower_bound(midpoints.begin(), midpoints.end(), x) - midpoints.begin());
        }
    }
    return offset;
}

}  // namespace unsloth::spec
