// A thread a row of B, or a column of A. Ceiling: latency; it reads and writes less than a hundredth of what the fold
// after it does.
#include "kernels/common/launch.h"
#include "kernels/fixed_low_rank.h"
#include "unsloth/spec/serve_grid.h"

namespace unsloth::kernels {
namespace {

constexpr int coding_threads = 64;  // few, so that all multiprocessors have some

constexpr int64_t row_tile_words = 32 * 4, column_tile_words = 4 * 32 * 4;  // of a chunk

struct Words {
    uint32_t high = 0, low = 0;  ///< a byte each of four of the rank
};

/// Four values of the rank from `first` on, `step` elements apart.
__device__ __forceinline__ Words words_of(const float* from, int64_t step, int64_t first, int64_t rank,
                                          const spec::FactorUnit& unit) {
    Words words;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int value = first + i < rank ? spec::in_units(from[(first + i) * step], unit) : 0;
        const int high = spec::high_part(value);
        words.high |= (static_cast<uint32_t>(high) & 255U) << (8 * i);
        words.low |= (static_cast<uint32_t>(value - 256 * high) & 255U) << (8 * i);
    }
    return words;
}

__device__ __forceinline__ spec::FactorUnit unit_of(const float* from, int64_t step, int64_t rank) {
    uint32_t largest = 0;
#pragma unroll 8
    for (int64_t j = 0; j < rank; ++j) largest = max(largest, spec::magnitude_bits(from[j * step]));
    return spec::factor_unit(largest);
}

__global__ void __launch_bounds__(coding_threads) code_factors(const float* __restrict__ b, const float* __restrict__ a,
                                                               int64_t rank, float scale, const FixedOperands to) {
    const int64_t row_blocks = ceil_div(to.rows, int64_t{coding_threads});
    const bool of_b = blockIdx.x < row_blocks;
    const int64_t at = (blockIdx.x - (of_b ? 0 : row_blocks)) * coding_threads + threadIdx.x;
    if (at >= (of_b ? to.rows : to.cols)) return;
    const float* const from = of_b ? b + at * rank : a + at;
    const int64_t step = of_b ? 1 : to.cols;
    const spec::FactorUnit unit = unit_of(from, step, rank);
    if (of_b)
        to.scaled_unit[at] = spec::rounded_product(scale, unit.unit);
    else
        to.a_unit[at] = spec::rounded_product(spec::product_units, unit.unit);
    const int64_t tile = at / (of_b ? fold_rows : fold_columns);
    const int in_tile = static_cast<int>(at % (of_b ? fold_rows : fold_columns));
    for (int chunk = 0; chunk < to.chunks; ++chunk)
        for (int t = 0; t < 4; ++t) {
            const Words words = words_of(from, step, chunk * fold_chunk + 4 * t, rank, unit);
            if (of_b) {
                uint32_t* const out =
                    to.b + (tile * to.chunks + chunk) * row_tile_words + (in_tile % 8 * 4 + t) * 4 + in_tile / 8;
                out[0] = words.high, out[2] = words.low;
            } else {
                const int g = in_tile / 16 * 2 + in_tile % 2, i = in_tile % 16 / 2;
                uint32_t* const out =
                    to.a + (tile * to.chunks + chunk) * column_tile_words + (i / 2 * 32 + g * 4 + t) * 4 + i % 2 * 2;
                out[0] = words.low, out[1] = words.high;
            }
        }
}

}  // namespace

FixedOperands fixed_operands(int64_t rows, int64_t cols, int64_t rank, void* workspace) {
    FixedOperands to;
    to.rows = rows, to.cols = cols, to.chunks = static_cast<int>(ceil_div(rank, fold_chunk));
    to.b = static_cast<uint32_t*>(workspace);
    to.a = to.b + ceil_div(rows, fold_rows) * to.chunks * row_tile_words;
    to.scaled_unit = reinterpret_cast<float*>(to.a + ceil_div(cols, fold_columns) * to.chunks * column_tile_words);
    to.a_unit = to.scaled_unit + round_up(rows, fold_rows);
    return to;
}

int64_t fixed_operand_bytes(int64_t rows, int64_t cols, int64_t rank) {
    const int64_t chunks = ceil_div(rank, fold_chunk), row_tiles = ceil_div(rows, fold_rows),
                  column_tiles = ceil_div(cols, fold_columns);
    return 4 * (chunks * (row_tiles * row_tile_words + column_tiles * column_tile_words) + row_tiles * fold_rows +
                column_tiles * fold_columns);
}

void make_fixed_operands(const float* b, const float* a, int64_t rank, float scale, const FixedOperands& to,
                         cudaStream_t stream) {
    const int64_t blocks = ceil_div(to.rows, coding_threads) + ceil_div(to.cols, coding_threads);
    UNSLOTH_LAUNCH(code_factors, static_cast<unsigned>(blocks), coding_threads, 0, stream, b, a, rank, scale, to);
}

}  // namespace unsloth::kernels
