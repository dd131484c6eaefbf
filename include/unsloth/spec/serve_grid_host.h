// W_eff = Q(W + scale · B·A) on the host: what training through a grid computes with, and what merging writes.
#pragma once

#include <cstdint>

#include "unsloth/spec/serve_grid.h"

namespace unsloth::spec {

/// W[rows, cols] += scale · (B[rows, r] · A[r, cols]), all row-major. The products are summed over r in order, each
/// product and sum rounded to fp32; the scale comes last. Single-threaded; call it for disjoint rows from several
/// threads.
void add_low_rank(const float* b, const float* a, int64_t r, float scale, int64_t rows, int64_t cols, float* w);

/// Rounds w[rows, cols] in place to a grid whose scales are of parts of rows: all but nf4 (spec/quant4_host.h).
/// `cols`: a multiple of grid_block where has_row_blocks(grid). A block with a value that is not finite becomes NaN.
/// Single-threaded, by rows.
void round_rows_to_grid(ServeGrid grid, int64_t rows, int64_t cols, float* w);

}  // namespace unsloth::spec
