// Q4_K and Q5_K: super-blocks of eight groups of 32; a group has a 6-bit scale and a 6-bit minimum, a super-block a
// half for each to multiply these by. Q6_K: sixteen groups of 16 with an 8-bit scale.
//
// The scales are ggml's reference choice without an importance matrix: of some candidates around the plain one the one
// with the least weighted squared error, each candidate followed by the least-squares fit to the codes it gives. The
// order of all sums is the reference's, so that the bytes are too.
#include <algorithm>
#include <cmath>

#include "formats/gguf/lanes.h"
#include "formats/gguf/quantizers.h"

namespace unsloth::formats::gguf {
namespace {

constexpr int group = 32;        ///< of Q4_K and Q5_K
constexpr int small_group = 16;  ///< of Q6_K

/// What the search found for eight groups: x is about scale * code - min.
struct AffineFit {
    Floats scale, min;
    Ints codes[group];
};

/// The sums that a least-squares fit of scale and minimum needs.
struct AffineSums {
    Floats w, x;                ///< of weights, of weighted values
    Floats code, code2, xcode;  ///< weighted, for the codes of one candidate
};

UNSLOTH_LANES void codes_of(const Floats (&x)[group], const Floats& inverse, const Floats& low, int largest_code,
                            Ints (&codes)[group]) {
    for (int i = 0; i < group; ++i) {
        round_lanes(inverse * (x[i] - low), codes[i]);
        clamp_lanes(codes[i], 0, largest_code);
    }
}

UNSLOTH_LANES void weighted_error(const Floats (&x)[group], const Floats (&weight)[group], const Floats& scale,
                                  const Floats& low, const Ints (&codes)[group], Floats& error) {
    error = Floats{};
    for (int i = 0; i < group; ++i) {
        const Floats difference = scale * __builtin_convertvector(codes[i], Floats) + low - x[i];
        error += weight[i] * (difference * difference);
    }
}

UNSLOTH_LANES void sum_codes(const Floats (&x)[group], const Floats (&weight)[group], const Ints (&codes)[group],
                             AffineSums& sums) {
    sums.code = sums.code2 = sums.xcode = Floats{};
    for (int i = 0; i < group; ++i) {
        const Floats code = __builtin_convertvector(codes[i], Floats);
        const Floats weighted = weight[i] * code;
        sums.code += weighted;
        sums.code2 += weighted * code;
        sums.xcode += weighted * x[i];
    }
}

/// Larger values weigh more: the mean magnitude plus their own.
UNSLOTH_LANES void weigh(const Floats (&x)[group], Floats (&weight)[group]) {
    Floats squares = {};
    for (int i = 0; i < group; ++i) squares += x[i] * x[i];
    Floats mean = {};  // GCC 13 does not see that all lanes follow
    for (int lane = 0; lane < lane_count; ++lane) mean[lane] = std::sqrt(squares[lane] / static_cast<float>(group));
    for (int i = 0; i < group; ++i) {
        magnitude_lanes(x[i], weight[i]);
        weight[i] = mean + weight[i];
    }
}

/// Candidates: codes 0 to largest_code spread over the group's range, stretched by first, first + 0.1, … codes.
UNSLOTH_LANES void search_affine(const float* values, int largest_code, float first, int last_step, AffineFit& fit) {
    Floats x[group], weight[group];
    load_groups(values, x);
    weigh(x, weight);
    Floats low = x[0], high = x[0];
    AffineSums sums = {weight[0], weight[0] * x[0]};
    for (int i = 1; i < group; ++i) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
        sums.w += weight[i];
        sums.x += weight[i] * x[i];
    }
    low = low > 0.0F ? Floats{} : low;  // the stored minimum is never positive
    const Ints flat = high == low;
    const Floats lowest = low;
    const auto largest = static_cast<float>(largest_code);

    const Floats inverse = largest / (high - low);
    fit.scale = 1.0F / inverse;
    codes_of(x, inverse, low, largest_code, fit.codes);
    Floats best;
    weighted_error(x, weight, fit.scale, low, fit.codes, best);
    for (int step = 0; step <= last_step; ++step) {
        Ints codes[group];
        // Each candidate starts from the minimum that fitted best so far.
        codes_of(x, (first + 0.1F * static_cast<float>(step) + largest) / (high - low), low, largest_code, codes);
        sum_codes(x, weight, codes, sums);
        const Floats determinant = sums.w * sums.code2 - sums.code * sums.code;
        Floats scale = (sums.w * sums.xcode - sums.x * sums.code) / determinant;
        Floats min = (sums.code2 * sums.x - sums.code * sums.xcode) / determinant;
        const Ints positive = min > 0.0F;
        scale = positive ? sums.xcode / sums.code2 : scale;
        min = positive ? Floats{} : min;
        Floats error;
        weighted_error(x, weight, scale, min, codes, error);
        const Ints better = (determinant > 0.0F) & (error < best) & ~flat;
        if (!any_lane(better)) continue;
        for (int i = 0; i < group; ++i) fit.codes[i] = better ? codes[i] : fit.codes[i];
        best = better ? error : best;
        fit.scale = better ? scale : fit.scale;
        low = better ? min : low;
    }
    fit.scale = flat ? Floats{} : fit.scale;
    fit.min = -(flat ? lowest : low);
    for (int i = 0; i < group; ++i) fit.codes[i] = flat ? Ints{} : fit.codes[i];
}

/// Packs the eight scales and minima (see SixBits), each rounded to 63rds of the largest.
UNSLOTH_LANES void pack_six_bits(const AffineFit& fit, float largest_scale, float largest_min, uint8_t* packed) {
    const float inverse_scale = largest_scale > 0 ? 63.0F / largest_scale : 0.0F;
    const float inverse_min = largest_min > 0 ? 63.0F / largest_min : 0.0F;
    for (int j = 0; j < lane_count; ++j) {
        // A negative scale wraps around to the largest code, as in the reference.
        const auto scale = static_cast<uint8_t>(round_one(inverse_scale * fit.scale[j]));
        const auto min = static_cast<uint8_t>(round_one(inverse_min * fit.min[j]));
        const int s = std::min<int>(63, scale), m = std::min<int>(63, min);
        if (j < 4) {
            packed[j] = static_cast<uint8_t>(s);
            packed[j + 4] = static_cast<uint8_t>(m);
        } else {
            packed[j + 4] = static_cast<uint8_t>((s & 15) | (m & 15) << 4);
            packed[j - 4] = static_cast<uint8_t>(packed[j - 4] | (s >> 4) << 6);
            packed[j] = static_cast<uint8_t>(packed[j] | (m >> 4) << 6);
        }
    }
}

/// The head of a block (the two halves, the packed scales) and the quantized values [256] for the rounded scales.
UNSLOTH_LANES void affine_block(const float* x, int largest_code, const AffineFit& fit, uint8_t* head, uint8_t* codes) {
    float largest_scale = 0, largest_min = 0;
    for (int j = 0; j < lane_count; ++j) {
        largest_scale = std::max(largest_scale, static_cast<float>(fit.scale[j]));
        largest_min = std::max(largest_min, static_cast<float>(fit.min[j]));
    }
    pack_six_bits(fit, largest_scale, largest_min, head + q4_k::packed);
    store_half(head + q4_k::scale, largest_scale / 63.0F);
    store_half(head + q4_k::min, largest_min / 63.0F);
    const float scale = load_half(head + q4_k::scale), min = load_half(head + q4_k::min);
    for (int j = 0; j < lane_count; ++j) {
        const SixBits six = unpack_six_bits(head + q4_k::packed, j);
        const float d = scale * static_cast<float>(six.scale), m = min * static_cast<float>(six.min);
        for (int i = 0; i < group; ++i) {
            const int code =
                d != 0 ? std::clamp(round_one((x[group * j + i] + m) / d), 0, largest_code) : fit.codes[i][j];
            codes[group * j + i] = static_cast<uint8_t>(code);
        }
    }
}

UNSLOTH_LANES void q4_k_body(const float* x, int64_t blocks, uint8_t* out) {
    for (int64_t b = 0; b < blocks; ++b, x += super_block, out += q4_k::bytes) {
        AffineFit fit;
        uint8_t codes[super_block];
        search_affine(x, 15, -1.0F, 20, fit);
        affine_block(x, 15, fit, out, codes);
        for (int i = 0; i < super_block / 2; ++i) {
            const int at = i / 32 * 64 + i % 32;
            out[q4_k::codes + i] = static_cast<uint8_t>(codes[at] | codes[at + 32] << 4);
        }
    }
}

UNSLOTH_LANES void q5_k_body(const float* x, int64_t blocks, uint8_t* out) {
    static_assert(q5_k::scale == q4_k::scale && q5_k::min == q4_k::min && q5_k::packed == q4_k::packed);
    for (int64_t b = 0; b < blocks; ++b, x += super_block, out += q5_k::bytes) {
        AffineFit fit;
        uint8_t codes[super_block];
        search_affine(x, 31, -0.5F, 15, fit);
        affine_block(x, 31, fit, out, codes);
        for (int i = 0; i < 32; ++i) {
            int high = 0;
            for (int j = 0; j < lane_count; ++j) high |= (codes[group * j + i] >> 4) << j;
            out[q5_k::high + i] = static_cast<uint8_t>(high);
        }
        for (int i = 0; i < super_block / 2; ++i) {
            const int at = i / 32 * 64 + i % 32;
            out[q5_k::codes + i] = static_cast<uint8_t>((codes[at] & 15) | (codes[at + 32] & 15) << 4);
        }
    }
}

/// What the search found for eight groups of 16: x is about scale * code, codes -32 to 31.
struct LinearFit {
    Floats scale;
    Ints codes[small_group];
};

/// Values below this are taken for zeros, as in the reference.
constexpr float negligible = 1e-15F;

UNSLOTH_LANES void try_linear(const Floats (&x)[small_group], const Floats& inverse, Ints (&codes)[small_group],
                              Floats& xcode, Floats& code2) {
    xcode = code2 = Floats{};
    for (int i = 0; i < small_group; ++i) {
        round_lanes(inverse * x[i], codes[i]);
        clamp_lanes(codes[i], -32, 31);
        const Floats code = __builtin_convertvector(codes[i], Floats), weight = x[i] * x[i];
        xcode += weight * x[i] * code;
        code2 += weight * code * code;
    }
}

/// Candidates: the value of largest magnitude takes a code of -32 - 0.9, …, -32 + 0.9. Values weigh by their squares.
UNSLOTH_LANES void search_linear(const float* values, LinearFit& fit) {
    Floats x[small_group];
    load_groups(values, x);
    Floats extreme = {}, largest = {};
    for (int i = 0; i < small_group; ++i) {
        Floats magnitude;
        magnitude_lanes(x[i], magnitude);
        const Ints larger = magnitude > largest;
        extreme = larger ? x[i] : extreme;
        largest = larger ? magnitude : largest;
    }
    const Ints empty = largest < negligible;
    Floats xcode, code2;
    try_linear(x, -32.0F / extreme, fit.codes, xcode, code2);
    fit.scale = code2 != 0.0F ? xcode / code2 : Floats{};
    Floats best = fit.scale * xcode;
    for (int step = -9; step <= 9; ++step) {
        if (step == 0) continue;
        Ints codes[small_group];
        try_linear(x, -(32.0F + 0.1F * static_cast<float>(step)) / extreme, codes, xcode, code2);
        const Ints better = (code2 > 0.0F) & (xcode * xcode > best * code2);
        if (!any_lane(better)) continue;
        for (int i = 0; i < small_group; ++i) fit.codes[i] = better ? codes[i] : fit.codes[i];
        fit.scale = better ? xcode / code2 : fit.scale;
        best = better ? fit.scale * xcode : best;
    }
    fit.scale = empty ? Floats{} : fit.scale;
    for (int i = 0; i < small_group; ++i) fit.codes[i] = empty ? Ints{} - 32 : fit.codes[i];
}

UNSLOTH_LANES void q6_k_pack(const uint8_t* codes, uint8_t* out) {
    for (int half = 0; half < 2; ++half)
        for (int i = 0; i < 32; ++i) {
            const uint8_t* const c = codes + half * 128 + i;
            out[q6_k::low + half * 64 + i] = static_cast<uint8_t>((c[0] & 15) | (c[64] & 15) << 4);
            out[q6_k::low + half * 64 + 32 + i] = static_cast<uint8_t>((c[32] & 15) | (c[96] & 15) << 4);
            out[q6_k::high + half * 32 + i] =
                static_cast<uint8_t>(c[0] >> 4 | (c[32] >> 4) << 2 | (c[64] >> 4) << 4 | (c[96] >> 4) << 6);
        }
}

UNSLOTH_LANES void q6_k_body(const float* x, int64_t blocks, uint8_t* out) {
    for (int64_t b = 0; b < blocks; ++b, x += super_block, out += q6_k::bytes) {
        LinearFit fits[2];
        search_linear(x, fits[0]);
        search_linear(x + super_block / 2, fits[1]);
        float extreme = 0;
        for (int j = 0; j < 16; ++j) {
            const float scale = fits[j / 8].scale[j % 8];
            if (std::fabs(scale) > std::fabs(extreme)) extreme = scale;
        }
        if (std::fabs(extreme) < negligible) {
            std::memset(out, 0, q6_k::bytes);
            continue;
        }
        const float inverse = -128.0F / extreme;
        store_half(out + q6_k::scale, 1.0F / inverse);
        const float scale = load_half(out + q6_k::scale);
        uint8_t codes[super_block];
        for (int j = 0; j < 16; ++j) {
            const auto group_scale =
                static_cast<int8_t>(std::min(127, round_one(inverse * static_cast<float>(fits[j / 8].scale[j % 8]))));
            out[q6_k::scales + j] = static_cast<uint8_t>(group_scale);
            const float d = scale * static_cast<float>(group_scale);
            for (int i = 0; i < small_group; ++i) {
                const int at = small_group * j + i;
                const int code = d != 0 ? std::clamp(round_one(x[at] / d), -32, 31) : fits[j / 8].codes[i][j % 8];
                codes[at] = static_cast<uint8_t>(code + 32);
            }
        }
        q6_k_pack(codes, out);
    }
}

}  // namespace

UNSLOTH_FOR_THIS_MACHINE(quantize_q4_k, q4_k_body)
UNSLOTH_FOR_THIS_MACHINE(quantize_q5_k, q5_k_body)
UNSLOTH_FOR_THIS_MACHINE(quantize_q6_k, q6_k_body)

}  // namespace unsloth::formats::gguf
