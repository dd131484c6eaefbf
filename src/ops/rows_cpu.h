// The CPU's part of ops/rows.h; arguments are checked by the caller.
#pragma once

#include "unsloth/ops/rows.h"

namespace unsloth::ops::cpu {

/// out[out_index[i] or i] = scale * source[source_index[i] or i]; an index may be undefined.
void copy_rows(const at::Tensor& source, const at::Tensor& source_index, const at::Tensor& out,
               const at::Tensor& out_index, int64_t rows, float scale);
void sum_rows(const at::Tensor& rows, const at::Tensor& places, const at::Tensor& out, const at::Tensor& weight);
void embedding_backward(const at::Tensor& dy, const at::Tensor& order, const at::Tensor& unique,
                        const at::Tensor& starts, const at::Tensor& dtable);
void column_sums(const at::Tensor& dy, const at::Tensor& sums);
void dropout(const spec::StepScalars& scalars, const at::Tensor& x, const at::Tensor& row, const at::Tensor& offset,
             float probability, DropoutKey key, const at::Tensor& out, bool accumulate);
void add_noise(const spec::StepScalars& scalars, const at::Tensor& x, const at::Tensor& row, const at::Tensor& offset,
               const at::Tensor& magnitude);

}  // namespace unsloth::ops::cpu
