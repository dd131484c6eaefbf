// The rule of ops/coded_rows.h for scales, on the CPU.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace unsloth::ops {

/// NaN where one is.
inline float largest_magnitude(const float* values, int64_t count) {
    float largest = 0;
    for (int64_t i = 0; i < count && !std::isnan(largest); ++i) {
        const float magnitude = std::fabs(values[i]);
        if (!(magnitude <= largest)) largest = magnitude;
    }
    return largest;
}

inline float code_scale(float largest, float largest_code) {
    if (largest == 0) return 1.0F;
    const float scale = largest / largest_code;
    return scale < std::numeric_limits<float>::min() ? std::numeric_limits<float>::min() : scale;
}

}  // namespace unsloth::ops
