// W_eff = Q(W + scale · B·A): a base with its adapter, rounded to the values that a served file will hold. The same
// bits as merging gives (spec/serve_grid_host.h, spec/quant4_host.h), on every device.
#pragma once

#include "unsloth/ops/context.h"
#include "unsloth/spec/serve_grid.h"

namespace unsloth::ops {

/// Bytes that fold_to_grid needs beside its arguments, for matrices of up to so many elements; 0: none.
int64_t grid_workspace(spec::ServeGrid grid, int64_t elements);
/// Writes what stays the same in the workspace (uint8, of those bytes, on ctx.device()), once after it was made.
void prepare_grid_workspace(Context& ctx, spec::ServeGrid grid, const at::Tensor& workspace);

struct GridFold {
    spec::ServeGrid grid = spec::ServeGrid::nf4;  ///< not none
    at::Tensor w_NK;                              ///< fp32, without gaps: W; overwritten
    at::Tensor b_Nr, a_rK;                        ///< fp32, without gaps; undefined: no adapter
    float scale = 0;
    at::Tensor out_NK;     ///< bf16, f16 or fp32, row stride free: W_eff, rounded once more
    at::Tensor workspace;  ///< prepared; undefined where grid_workspace is 0
};
/// Columns must be a multiple of spec::grid_block where has_row_blocks(grid). A block with a value that is not finite
/// becomes NaN. CUDA: does not synchronise, and can be recorded.
void fold_to_grid(Context& ctx, const GridFold& fold);

}  // namespace unsloth::ops
