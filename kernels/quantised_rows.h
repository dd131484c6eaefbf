// Rows of quantised tables: 8-bit ones (include/unsloth/spec/int8.h), 4-bit ones (include/unsloth/spec/quant4.h). All
// pointers are device pointers, or of pinned host memory; work is issued on `stream`; a failed launch throws.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/rows_view.h"
#include "unsloth/spec/dtype.h"
#include "unsloth/spec/quant4.h"

namespace unsloth::kernels {

/// out[i] = row index[i] of the table, or row i, for i < rows.
struct QuantisedRows {
    int64_t rows = 0;
    int64_t columns = 0;
    const int32_t* index = nullptr;  ///< nullptr: row i itself
    Matrix out;
    spec::DType out_type = spec::DType::bf16;
};

/// codes [table rows, columns], maxima [table rows].
void expand_rows_int8(const QuantisedRows& params, const int8_t* codes, const float* maxima, cudaStream_t stream);
/// `table`'s columns are the rows'.
void expand_rows_4bit(const QuantisedRows& params, const spec::Quant4View& table, cudaStream_t stream);

}  // namespace unsloth::kernels
