#include "unsloth/spec/serve_grid_host.h"

#include <algorithm>
#include <limits>

namespace unsloth::spec {
namespace {

/// add_low_rank for `tile_rows` rows, which share what is read of A.
template <int tile_rows>
void add_tile(const float* b, const float* a, int64_t r, float scale, int64_t cols, float* w) {
    constexpr int64_t width = 256;  // sums that stay in the first cache
    float sum[tile_rows][width];
    for (int64_t begin = 0; begin < cols; begin += width) {
        const int64_t count = std::min(width, cols - begin);
        for (auto& row : sum) std::fill(row, row + count, 0.0F);
        for (int64_t j = 0; j < r; ++j) {
            const float* const a_row = a + j * cols + begin;
            for (int i = 0; i < tile_rows; ++i) {
                const float factor = b[i * r + j];
                for (int64_t k = 0; k < count; ++k) sum[i][k] += factor * a_row[k];
            }
        }
        for (int i = 0; i < tile_rows; ++i) {
            float* const out = w + i * cols + begin;
            for (int64_t k = 0; k < count; ++k) out[k] += scale * sum[i][k];
        }
    }
}

/// One block of `count` values with one scale.
void round_block(ServeGrid grid, int64_t count, float* w) {
    constexpr float largest_float = std::numeric_limits<float>::max();
    float largest = 0, extreme = 0;
    bool finite = true;
    for (int64_t i = 0; i < count; ++i) {
        const float magnitude = std::fabs(w[i]);
        finite = finite && magnitude <= largest_float;  // false for a NaN, too
        if (magnitude > largest) largest = magnitude, extreme = w[i];
    }
    if (!finite) return void(std::fill(w, w + count, std::numeric_limits<float>::quiet_NaN()));
    const GridScale scale = grid_scale(grid, largest, extreme);
    for (int64_t i = 0; i < count; ++i) w[i] = on_grid(grid, w[i], scale);
}

}  // namespace

void add_low_rank(const float* b, const float* a, int64_t r, float scale, int64_t rows, int64_t cols, float* w) {
    int64_t row = 0;
    for (; row + 4 <= rows; row += 4) add_tile<4>(b + row * r, a, r, scale, cols, w + row * cols);
    for (; row < rows; ++row) add_tile<1>(b + row * r, a, r, scale, cols, w + row * cols);
}

FixedLowRank::FixedLowRank(const float* b, const float* a, int64_t r, float scale, int64_t rows, int64_t cols)
    : r_(r), cols_(cols) {
    const auto b_size = static_cast<std::size_t>(rows * r), a_size = static_cast<std::size_t>(r * cols);
    b_high_.resize(b_size), b_low_.resize(b_size), a_high_.resize(a_size), a_value_.resize(a_size);
    scaled_unit_.reserve(static_cast<std::size_t>(rows)), a_unit_.reserve(static_cast<std::size_t>(cols));
    for (int64_t row = 0; row < rows; ++row) {
        uint32_t largest = 0;
        for (int64_t j = 0; j < r; ++j) largest = std::max(largest, magnitude_bits(b[row * r + j]));
        const FactorUnit unit = factor_unit(largest);
        for (int64_t j = 0; j < r; ++j) {
            const auto at = static_cast<std::size_t>(row * r + j);
            const int value = in_units(b[at], unit), high = high_part(value);
            b_high_[at] = static_cast<int16_t>(high), b_low_[at] = static_cast<int16_t>(value - 256 * high);
        }
        scaled_unit_.push_back(rounded_product(scale, unit.unit));
    }
    std::vector<uint32_t> largest(static_cast<std::size_t>(cols));
    for (std::size_t at = 0; at < a_size; ++at) {
        uint32_t& of_column = largest[at % largest.size()];
        of_column = std::max(of_column, magnitude_bits(a[at]));
    }
    for (const uint32_t bits : largest) a_unit_.push_back(rounded_product(product_units, factor_unit(bits).unit));
    for (std::size_t at = 0; at < a_size; ++at) {
        const int value = in_units(a[at], factor_unit(largest[at % largest.size()]));
        a_value_[at] = static_cast<int16_t>(value), a_high_[at] = static_cast<int16_t>(high_part(value));
    }
}

void FixedLowRank::add(int64_t row_begin, int64_t row_end, float* w) const {
    constexpr int64_t width = 256;  // sums that stay in the first cache
    int sum[width];
    for (int64_t row = row_begin; row < row_end; ++row, w += cols_)
        for (int64_t begin = 0; begin < cols_; begin += width) {
            const int64_t count = std::min(width, cols_ - begin);
            std::fill(sum, sum + count, 0);
            for (int64_t j = 0; j < r_; ++j) {
                const auto of_b = static_cast<std::size_t>(row * r_ + j);
                const int high = b_high_[of_b], low = b_low_[of_b];
                const int16_t* const a_value = a_value_.data() + j * cols_ + begin;
                const int16_t* const a_high = a_high_.data() + j * cols_ + begin;
                for (int64_t k = 0; k < count; ++k) sum[k] += high * a_value[k] + low * a_high[k];
            }
            const float unit = scaled_unit_[static_cast<std::size_t>(row)];
            const float* const a_unit = a_unit_.data() + begin;
            for (int64_t k = 0; k < count; ++k)
                w[begin + k] = rounded_sum(w[begin + k], low_rank_value(sum[k], a_unit[k], unit));
        }
}

void round_rows_to_grid(ServeGrid grid, int64_t rows, int64_t cols, float* w) {
    const int64_t block = has_row_blocks(grid) ? grid_block : cols;
    for (int64_t i = 0; i < rows * cols; i += block) round_block(grid, block, w + i);
}

}  // namespace unsloth::spec
