// Launchers of rounding to a grid; see include/unsloth/ops/serve_grid.h. All pointers are device pointers.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/rows_view.h"
#include "unsloth/spec/dtype.h"
#include "unsloth/spec/serve_grid.h"

namespace unsloth::kernels {

struct GridFold {
    spec::ServeGrid grid = spec::ServeGrid::nf4;
    int64_t rows = 0, cols = 0, rank = 0;  ///< rank 0: no adapter
    float* w = nullptr;                    ///< [rows, cols]
    const float *b = nullptr, *a = nullptr;
    float scale = 0;
    spec::DType out_type = spec::DType::bf16;
    Matrix out;  ///< not of nf4
};
/// w += scale · B·A, in place.
void add_low_rank(const GridFold& fold, cudaStream_t stream);
/// out = the grid's values for w + scale · B·A: all grids but nf4. w is overwritten.
void fold_to_row_grid(const GridFold& fold, cudaStream_t stream);

/// maxima[b] = map[codes[b]] · nested[b / 256] + *offset, as spec/quant4.h says: nf4's block maxima.
struct NestedMaxima {
    int64_t blocks = 0;
    const uint8_t* codes = nullptr;
    const float *map = nullptr, *nested = nullptr, *offset = nullptr;
    float* maxima = nullptr;
};
void decode_nested_maxima(const NestedMaxima& params, cudaStream_t stream);

}  // namespace unsloth::kernels
