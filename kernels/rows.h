// Launchers that move rows: gather, scatter, strided copies, zeros, embedding gradient, column sums, dropout, noise;
// see include/unsloth/ops/rows.h.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/rows_view.h"
#include "unsloth/spec/dtype.h"
#include "unsloth/spec/step_scalars.h"

namespace unsloth::kernels {

/// out[out_index[i] or i] = scale * source[source_index[i] or i], for i < rows.
struct CopyRows {
    int64_t rows = 0;
    int64_t columns = 0;
    spec::DType source_type = spec::DType::bf16;
    spec::DType out_type = spec::DType::bf16;
    ConstMatrix source;
    Matrix out;
    const int32_t* source_index = nullptr;  ///< nullptr: row i itself
    const int32_t* out_index = nullptr;
    float scale = 1;
};
void copy_rows(const CopyRows& params, cudaStream_t stream);

/// out[t] = the sum of source[p] * (weight[p], or that of t's choice j, or 1) over the places p = places[places_each *
/// t + j] that are not negative, j < places_each, in their order, + residual[t].
struct SumRows {
    int64_t rows = 0;  ///< of out
    int64_t columns = 0;
    spec::DType type = spec::DType::bf16;
    ConstMatrix source;
    Matrix out;
    const int32_t* places = nullptr;
    int places_each = 2;
    const float* weight = nullptr;         ///< of the source's rows; nullptr: ones
    const float* choice_weight = nullptr;  ///< as places; instead
    ConstMatrix residual = {};             ///< may be out; no data: zeros
};
void sum_rows(const SumRows& params, cudaStream_t stream);

void zero_rows(const Matrix& out, int64_t rows, int64_t columns, spec::DType type, cudaStream_t stream);

/// x[i][c] = 0 where row_owner[t] and column_owner[c] differ, t = index[i].
struct ZeroOthers {
    int64_t rows = 0;
    int64_t columns = 0;
    spec::DType type = spec::DType::bf16;
    Matrix x;
    const int32_t* row_owner = nullptr;
    const int32_t* index = nullptr;         ///< [rows]; nullptr: t = i
    const int32_t* column_owner = nullptr;  ///< [columns]
};
void zero_others(const ZeroOthers& params, cudaStream_t stream);

/// dtable[unique[u]] += sum of dy[order[i]] for i in starts[u] .. starts[u + 1].
struct EmbeddingBackward {
    int64_t unique_count = 0;
    int64_t columns = 0;
    spec::DType type = spec::DType::bf16;  ///< of dy
    ConstMatrix dy;
    const int32_t* order = nullptr;
    const int32_t* unique = nullptr;
    const int32_t* starts = nullptr;
    Matrix dtable;  ///< fp32
};
void embedding_backward(const EmbeddingBackward& params, cudaStream_t stream);

struct ColumnSums {
    int64_t rows = 0;
    int64_t columns = 0;
    spec::DType type = spec::DType::bf16;
    ConstMatrix dy;
    float* sums = nullptr;  ///< [columns], +=
};
void column_sums(const ColumnSums& params, cudaStream_t stream);

struct Dropout {
    int64_t tokens = 0;
    int64_t columns = 0;
    spec::DType type = spec::DType::bf16;
    ConstMatrix x;
    Matrix out;                       ///< may be x
    const int32_t* row = nullptr;     ///< [tokens]: source row
    const int32_t* offset = nullptr;  ///< [tokens]: token in the source row
    const spec::StepScalars* scalars = nullptr;
    float probability = 0;  ///< of dropping
    uint32_t layer = 0;
    uint32_t projection = 0;
    uint32_t first_channel = 0;  ///< of column 0; a multiple of 4
    bool accumulate = false;
};
void dropout(const Dropout& params, cudaStream_t stream);

/// x[t] += magnitude[t] * u, u uniform in [-1, 1).
struct AddNoise {
    int64_t tokens = 0;
    int64_t columns = 0;
    spec::DType type = spec::DType::bf16;
    Matrix x;
    const int32_t* row = nullptr;      ///< [tokens]: source row
    const int32_t* offset = nullptr;   ///< [tokens]: token in the source row
    const float* magnitude = nullptr;  ///< [tokens]
    const spec::StepScalars* scalars = nullptr;
};
void add_noise(const AddNoise& params, cudaStream_t stream);

}  // namespace unsloth::kernels
