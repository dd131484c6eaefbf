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

void round_rows_to_grid(ServeGrid grid, int64_t rows, int64_t cols, float* w) {
    const int64_t block = has_row_blocks(grid) ? grid_block : cols;
    for (int64_t i = 0; i < rows * cols; i += block) round_block(grid, block, w + i);
}

}  // namespace unsloth::spec
