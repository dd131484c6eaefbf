#include "unsloth/formats/mxfp4.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "unsloth/core/error.h"
#include "unsloth/core/parallel.h"
#include "unsloth/spec/quant4_host.h"

namespace unsloth::formats {
namespace {

constexpr int64_t block_bytes = spec::mxfp4_block / 2;
constexpr int no_number = 255;  // of a scale
constexpr float largest_code = 6.0F;

const uint8_t* bytes_of(const TensorView& tensor) {
    return reinterpret_cast<const uint8_t*>(tensor.data.data());
}

/// Where a row is stored.
struct Mxfp4Row {
    const uint8_t* blocks;
    const uint8_t* scales;
};
Mxfp4Row row_of(const Mxfp4Weight& weight, int64_t row) {
    const int64_t place = weight.first_row + row * weight.row_step;
    return {bytes_of(*weight.blocks) + place * (weight.cols / 2),
            bytes_of(*weight.scales) + place * (weight.cols / spec::mxfp4_block)};
}

float scale_of(uint8_t exponent) {
    return exponent == no_number ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0F, exponent - 127);
}

/// Of a block's values.
float largest_magnitude_of(const uint8_t* block, uint8_t exponent) {
    float largest = 0;
    for (int64_t i = 0; i < block_bytes; ++i)
        for (const int code : {block[i] & 15, block[i] >> 4})
            largest = std::max(largest, std::fabs(spec::mxfp4_code[code]));
    return largest * scale_of(exponent);
}

/// The least exponent with which a block may have a value that is not below the limit.
int least_suspicious_exponent(float limit) {
    int exponent = 0;
    while (exponent < no_number && largest_code * scale_of(static_cast<uint8_t>(exponent)) < limit) ++exponent;
    return exponent;
}

/// 32 codes with the two of each byte in the other order.
void copy_swapped(const uint8_t* from, uint8_t* to) {
    constexpr uint64_t low = 0x0F0F0F0F0F0F0F0FU;
    uint64_t words[2];
    static_assert(sizeof words == block_bytes);
    std::memcpy(words, from, sizeof words);
    for (uint64_t& word : words) word = (word & low) << 4 | (word >> 4 & low);
    std::memcpy(to, words, sizeof words);
}

}  // namespace

void Mxfp4Weight::drop() const noexcept {
    if (first_row + 1 < row_step) return;
    blocks->drop();
    scales->drop();
}

std::vector<TensorDecl> mxfp4_declarations(const std::string& parameter, int64_t experts, int64_t rows, int64_t cols) {
    const int64_t blocks = cols / spec::mxfp4_block;
    return {{cat(parameter, mxfp4_blocks_suffix), spec::DType::u8, {experts, rows, blocks, block_bytes}},
            {cat(parameter, mxfp4_scales_suffix), spec::DType::u8, {experts, rows, blocks}}};
}

std::optional<Mxfp4Weight> find_mxfp4(const Checkpoint& checkpoint, const std::string& parameter) {
    const TensorView* const blocks = checkpoint.find(cat(parameter, mxfp4_blocks_suffix));
    const TensorView* const scales = checkpoint.find(cat(parameter, mxfp4_scales_suffix));
    if (blocks == nullptr || scales == nullptr || blocks->dtype != spec::DType::u8 ||
        scales->dtype != spec::DType::u8 || blocks->shape.size() != 4 || blocks->shape[3] != block_bytes ||
        !std::equal(scales->shape.begin(), scales->shape.end(), blocks->shape.begin(), blocks->shape.end() - 1))
        return std::nullopt;
    return Mxfp4Weight{.blocks = blocks,
                       .scales = scales,
                       .rows = blocks->shape[0] * blocks->shape[1],
                       .cols = blocks->shape[2] * spec::mxfp4_block};
}

void copy_rows(const Mxfp4Weight& weight, int64_t row_begin, int64_t row_end, uint8_t* packed, uint8_t* exponents) {
    UNSLOTH_CHECK(0 <= row_begin && row_begin <= row_end && row_end <= weight.rows, "rows ", row_begin, " to ",
                  row_end);
    static const int suspicious = least_suspicious_exponent(std::numeric_limits<float>::infinity());
    const int64_t blocks = weight.cols / spec::mxfp4_block;
    for (int64_t row = row_begin; row < row_end; ++row, exponents += blocks) {
        const Mxfp4Row from = row_of(weight, row);
        std::memcpy(exponents, from.scales, static_cast<std::size_t>(blocks));
        for (int64_t block = 0; block < blocks; ++block, packed += block_bytes) {
            const uint8_t* const codes = from.blocks + block * block_bytes;
            if (exponents[block] >= suspicious && !std::isfinite(largest_magnitude_of(codes, exponents[block])))
                throw Error("checkpoint.not-finite",
                            cat(weight.blocks->file->path().string(), ": tensor '", weight.scales->name,
                                "': the scale ", static_cast<int>(exponents[block]), " of row ", row, ", column ",
                                block * spec::mxfp4_block, " makes values that are not finite"),
                            "The file is damaged: download the model again.");
            copy_swapped(codes, packed);
        }
    }
}

void dequantize_rows(const Mxfp4Weight& weight, int64_t row_begin, int64_t row_end, float* out) {
    std::vector<uint8_t> packed(static_cast<std::size_t>(weight.cols / 2)),
        exponents(static_cast<std::size_t>(weight.cols / spec::mxfp4_block));
    spec::Quant4View row_view;
    row_view.packed = packed.data();
    row_view.code = spec::mxfp4_code;
    row_view.exponents = exponents.data();
    row_view.rows = 1;
    row_view.cols = weight.cols;
    for (int64_t row = row_begin; row < row_end; ++row, out += weight.cols) {
        copy_rows(weight, row, row + 1, packed.data(), exponents.data());
        spec::dequantize_4bit_range(row_view, 0, weight.cols, out, [](float value) { return value; });
    }
}

std::optional<Mxfp4Place> first_not_below(const Mxfp4Weight& weight, float limit) {
    const int suspicious = least_suspicious_exponent(limit);
    const int64_t blocks = weight.cols / spec::mxfp4_block;
    const auto find_in = [&](int64_t row) -> std::optional<Mxfp4Place> {
        const Mxfp4Row from = row_of(weight, row);
        for (int64_t block = 0; block < blocks; ++block) {
            if (from.scales[block] < suspicious) continue;
            const float value = largest_magnitude_of(from.blocks + block * block_bytes, from.scales[block]);
            if (!(value < limit)) return Mxfp4Place{row, block * spec::mxfp4_block, value};
        }
        return std::nullopt;
    };
    std::atomic<int64_t> first_bad = weight.rows;
    parallel_ranges(weight.rows, 4096, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end && row < first_bad; ++row) {
            if (!find_in(row)) continue;
            for (int64_t seen = first_bad; row < seen && !first_bad.compare_exchange_weak(seen, row);) continue;
            return;
        }
    });
    return first_bad < weight.rows ? find_in(first_bad) : std::nullopt;
}

}  // namespace unsloth::formats
