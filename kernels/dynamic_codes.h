// The exact code of a number in one of the 8-bit dynamic maps with a single table look-up, shared by the
// kernel that needs it fast and the tests that hold it against a search.
//
// A map's code is decided by thresholds: code(x) = how many thresholds x exceeds. Cut [2^-23, 1] into buckets
// by a float's exponent and its top mantissa bits, finely enough that no bucket holds two thresholds (the
// maps are linear within decades: their entries are at least 0.7 % of their value apart, two buckets' width
// and more). Then x's bucket and the bits of x below it decide: one entry holds the code at the bucket's
// begin and where in the bucket, if at all, the code goes up by one.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/adamw_math.h"

namespace unsloth::kernels::adamw {

UNSLOTH_HOST_DEVICE uint32_t bits_of_float(float x) {
#ifdef __CUDA_ARCH__
    return __float_as_uint(x);
#else
    uint32_t bits = 0;
    std::memcpy(&bits, &x, sizeof(bits));
    return bits;
#endif
}
UNSLOTH_HOST_DEVICE float float_of_bits(uint32_t bits) {
#ifdef __CUDA_ARCH__
    return __uint_as_float(bits);
#else
    float x = 0;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
#endif
}

/// Below it every code is the zero entry's: both maps' first threshold is above 2^-23.
inline constexpr uint32_t least_bits = 0x34000000U;
inline constexpr uint32_t one_bits = 0x3F800000U, two_bits = 0x40000000U;

/// Codes of x >= 0 in a map's entries `zero_code`, zero_code + 1, ... 255, counted from 0 at the zero entry.
/// kMantissaBits: of a float that choose the bucket.
template <int kMantissaBits, int kZeroCode>
struct CodeTable {
    static constexpr int shift = 23 - kMantissaBits;
    static constexpr uint32_t below = (1U << shift) - 1;  ///< the bits of x that its bucket does not tell
    static constexpr uint32_t first = least_bits >> shift;
    static constexpr uint32_t mask = (two_bits >> shift) - 1;
    static constexpr int buckets = static_cast<int>(mask + 1 - first);  ///< those above 1 keep a NaN's look-up inside
    static constexpr int thresholds = 255 - kZeroCode;

    /// The largest x that still takes code k: the midpoint of entries k and k + 1 itself goes to the map's
    /// even one.
    UNSLOTH_HOST_DEVICE static float threshold(const float* map, int k) {
        const int code = kZeroCode + k;
        const float middle = mul(add(map[code], map[code + 1]), 0.5F);
        return code % 2 == 0 ? middle : float_of_bits(bits_of_float(middle) - 1);
    }

    /// Entry of a bucket: the code k at its begin, above, and below `shift` what makes an x past the
    /// threshold carry. sorted[k] = bits_of_float(threshold(map, k)).
    UNSLOTH_HOST_DEVICE static uint32_t entry(const uint32_t* sorted, int bucket) {
        const uint32_t prefix = first + static_cast<uint32_t>(bucket);
        int k = 0, end = thresholds;  // the first threshold that is not in an earlier bucket
        while (k < end) {
            const int middle = (k + end) / 2;
            if (sorted[middle] >> shift < prefix) {
                k = middle + 1;
            } else {
                end = middle;
            }
        }
        const bool rises = k < thresholds && sorted[k] >> shift == prefix;
        return static_cast<uint32_t>(k) << shift | (rises ? below - (sorted[k] & below) : 0U);
    }

    /// x in [0, 1]; anything else that is not negative (a NaN) gives some code of the map.
    UNSLOTH_HOST_DEVICE static int code(const uint32_t* entries, float x) {
        uint32_t bits = bits_of_float(x);
        bits = bits < least_bits ? least_bits : bits;
        return static_cast<int>(
            (entries[static_cast<int>((bits >> shift) & mask) - static_cast<int>(first)] + (bits & below)) >> shift);
    }
};

using SignedCodes = CodeTable<6, zero_code_m>;  ///< of magnitudes: the map is symmetric but for its 1
using UnsignedCodes = CodeTable<7, zero_code_v>;

/// The code of the first moment m whose magnitude over the largest one is `scaled`: nearest_code and
/// with_sign_of in one.
UNSLOTH_HOST_DEVICE int signed_code(const uint32_t* entries, float m, float scaled) {
    const int negative = static_cast<int>(bits_of_float(m) >> 31);
    int steps = SignedCodes::code(entries, scaled);
    steps = steps < negative ? negative : steps;  // a negative m is no zero
    const int code = zero_code_m + (1 - 2 * negative) * steps;
    return code < 0 ? 0 : code;  // the map has no -1
}

}  // namespace unsloth::kernels::adamw
