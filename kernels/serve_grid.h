// Launchers of rounding to a grid; see include/unsloth/ops/serve_grid.h. All pointers are device pointers. The base and
// what is written for nf4 are aligned to 16 bytes, and columns are a multiple of 8.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/fixed_low_rank.h"
#include "kernels/rows_view.h"
#include "unsloth/spec/dtype.h"
#include "unsloth/spec/quant4.h"
#include "unsloth/spec/serve_grid.h"

namespace unsloth::kernels {

/// Where codes and block maxima of a matrix go.
struct Nf4Blocks {
    uint8_t* packed = nullptr;
    float* maxima = nullptr;
};

struct GridFold {
    spec::ServeGrid grid = spec::ServeGrid::nf4;
    int64_t rows = 0, cols = 0;
    spec::Quant4View codes;   ///< W in 4 bits, not MXFP4's
    const void* w = nullptr;  ///< where there are none: W [rows, cols], without gaps
    spec::DType w_type = spec::DType::f32;
    FixedOperands low_rank;  ///< of the same rows and columns; made before
    spec::DType out_type = spec::DType::bf16;
    Matrix out;
    Nf4Blocks nf4;                    ///< of fold_to_nf4
    uint32_t* row_largest = nullptr;  ///< fp8's room, [rows]
    bool out_aligned = false;         ///< the launcher says
};
/// out (fp32) = W + scale · B·A; may be w.
void fold_to_values(const GridFold& fold, cudaStream_t stream);
/// Codes of W + scale · B·A, and their block maxima in fp32. Columns: a multiple of 64.
void fold_to_nf4(const GridFold& fold, cudaStream_t stream);
/// out = the grid's values for W + scale · B·A: of all grids but nf4.
void fold_to_rows(const GridFold& fold, cudaStream_t stream);

}  // namespace unsloth::kernels
