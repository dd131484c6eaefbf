// W_eff = Q(W + scale · B·A): a base with its adapter, rounded to the values that a served file will hold. The same
// bits as merging gives (spec/serve_grid_host.h, spec/quant4_host.h), on every device.
#pragma once

#include "unsloth/ops/context.h"
#include "unsloth/spec/quant4.h"
#include "unsloth/spec/serve_grid.h"

namespace unsloth::ops {

/// Bytes that fold_to_grid needs in addition to its arguments, for one matrix; a larger workspace is fine. 0: none.
int64_t grid_workspace(spec::ServeGrid grid, int64_t rows, int64_t cols, int64_t rank);
/// Writes what stays the same in the workspace (uint8, of those bytes, on ctx.device()), once after it was made.
void prepare_grid_workspace(Context& ctx, spec::ServeGrid grid, const at::Tensor& workspace);

struct GridFold {
    spec::ServeGrid grid = spec::ServeGrid::nf4;  ///< not none
    const spec::Quant4View* codes = nullptr;      ///< W in 4 bits (not MXFP4's); nullptr: w_NK
    at::Tensor w_NK;                              ///< W where there are no codes: bf16, f16 or fp32, without gaps
    at::Tensor values_NK;   ///< fp32, without gaps: room that is overwritten; may hold W itself (w_NK)
    at::Tensor b_Nr, a_rK;  ///< fp32, without gaps, r at most spec::largest_fixed_rank; undefined: no adapter
    float scale = 0;
    at::Tensor out_NK;     ///< bf16, f16 or fp32, row stride free: W_eff, rounded once more
    at::Tensor workspace;  ///< prepared; undefined where grid_workspace is 0
};
/// Columns: a multiple of 8, and of spec::grid_block where has_row_blocks(grid). A block with a value that is not
/// finite becomes NaN. CUDA: does not synchronise, and can be recorded. W is read as it is stored where it is aligned
/// to 16 bytes.
void fold_to_grid(Context& ctx, const GridFold& fold);

}  // namespace unsloth::ops
