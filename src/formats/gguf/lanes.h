// Eight groups of a block side by side, a group a lane: every lane does the sums of its group one after another, so the
// results are the bits of plain loops, eight at a time. Vector extensions of GCC and Clang, in whatever instructions
// the enclosing function may use.
#pragma once

#include <cstdint>
#include <cstring>

namespace unsloth::formats::gguf {

inline constexpr int lane_count = 8;
using Floats = float __attribute__((vector_size(lane_count * sizeof(float))));
using Ints = int32_t __attribute__((vector_size(lane_count * sizeof(int32_t))));

// Inlined into functions for other instruction sets, which only always_inline allows with certainty. Vectors go by
// reference: how they are passed by value depends on the instruction set.
#define UNSLOTH_LANES [[gnu::always_inline]] inline

/// Nearest integers, ties to even, of magnitudes below 2^22; anything else gives some integer below 2^23.
UNSLOTH_LANES void round_lanes(const Floats& values, Ints& out) {
    const Floats shifted = values + 12582912.0F;  // 1.5 * 2^23: the integer is then in the low mantissa bits
    Ints bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    out = (bits & 0x007FFFFF) - 0x00400000;
}
UNSLOTH_LANES int32_t round_one(float value) {
    const float shifted = value + 12582912.0F;
    int32_t bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    return (bits & 0x007FFFFF) - 0x00400000;
}
UNSLOTH_LANES void clamp_lanes(Ints& values, int32_t low, int32_t high) {
    values = values < low ? Ints{} + low : values;
    values = values > high ? Ints{} + high : values;
}
UNSLOTH_LANES bool any_lane(const Ints& mask) {
    int32_t any = 0;
    for (int lane = 0; lane < lane_count; ++lane) any |= mask[lane];
    return any != 0;
}
UNSLOTH_LANES void magnitude_lanes(const Floats& values, Floats& out) {
    out = values < 0 ? -values : values;
}

/// groups[i] holds element i of each of eight groups of `size` consecutive values.
template <int size>
UNSLOTH_LANES void load_groups(const float* x, Floats (&groups)[size]) {
    for (int i = 0; i < size; ++i)
        for (int lane = 0; lane < lane_count; ++lane) groups[i][lane] = x[lane * size + i];
}

/// Runs `body`, which is always_inline, compiled for AVX2 where the machine has it.
#if defined(__x86_64__) && !defined(__AVX2__)
#define UNSLOTH_FOR_THIS_MACHINE(name, body)                                                 \
    [[gnu::target("avx2")]] void name##_avx2(const float* x, int64_t blocks, uint8_t* out) { \
        body(x, blocks, out);                                                                \
    }                                                                                        \
    void name##_plain(const float* x, int64_t blocks, uint8_t* out) {                        \
        body(x, blocks, out);                                                                \
    }                                                                                        \
    void name(const float* x, int64_t blocks, uint8_t* out) {                                \
        static const bool has_avx2 = __builtin_cpu_supports("avx2");                         \
        has_avx2 ? name##_avx2(x, blocks, out) : name##_plain(x, blocks, out);               \
    }
#else
#define UNSLOTH_FOR_THIS_MACHINE(name, body)                  \
    void name(const float* x, int64_t blocks, uint8_t* out) { \
        body(x, blocks, out);                                 \
    }
#endif

}  // namespace unsloth::formats::gguf
