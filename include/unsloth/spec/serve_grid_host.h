// W_eff = Q(W + scale · B·A) on the host: what training through a grid computes with, and what merging writes.
#pragma once

#include <cstdint>
#include <vector>

#include "unsloth/spec/serve_grid.h"

namespace unsloth::spec {

/// W[rows, cols] += scale · (B[rows, r] · A[r, cols]), all row-major. The products are summed over r in order, each
/// product and sum rounded to fp32; the scale comes last. Single-threaded; call it for disjoint rows from several
/// threads.
void add_low_rank(const float* b, const float* a, int64_t r, float scale, int64_t rows, int64_t cols, float* w);

/// An adapter's product in fixed point (spec/serve_grid.h): what is added before rounding to a grid. Its error is some
/// 2^-14 of the product's largest terms, where the finest grid's is 2^-8 of the base's largest value.
class FixedLowRank {
  public:
    /// B[rows, r] and A[r, cols], row-major, which it copies. r: at most largest_fixed_rank.
    FixedLowRank(const float* b, const float* a, int64_t r, float scale, int64_t rows, int64_t cols);
    /// w[row_end - row_begin, cols] += scale · B·A of these rows. For disjoint rows from several threads.
    void add(int64_t row_begin, int64_t row_end, float* w) const;

  private:
    int64_t r_, cols_;
    std::vector<int16_t> b_high_, b_low_;    ///< [rows, r]
    std::vector<int16_t> a_high_, a_value_;  ///< [r, cols]
    std::vector<float> scaled_unit_;         ///< [rows]
    std::vector<float> a_unit_;              ///< [cols]
};

/// Rounds w[rows, cols] in place to a grid whose scales are of parts of rows: all but nf4 (spec/quant4_host.h).
/// `cols`: a multiple of grid_block where has_row_blocks(grid). A block with a value that is not finite becomes NaN.
/// Single-threaded, by rows.
void round_rows_to_grid(ServeGrid grid, int64_t rows, int64_t cols, float* w);

}  // namespace unsloth::spec
