// Checks that every operator makes once on its tensors, before it dispatches: a wrong call is a bug of ours, found here
// and not by a kernel.
#pragma once

#include <optional>

#include "unsloth/core/error.h"
#include "unsloth/ops/coded_rows.h"
#include "unsloth/ops/context.h"
#include "unsloth/ops/dtype.h"

namespace unsloth::ops {

/// fp32, bf16 or f16.
bool is_compute_dtype(at::ScalarType type);

/// `name` is on the context's device, has this shape and dtype, and a contiguous last dimension; the other strides are
/// free (not negative). A context's device has an index on CUDA.
void check_tensor(const Context& ctx, const char* name, const at::Tensor& tensor, at::IntArrayRef shape,
                  at::ScalarType dtype);

/// The same for any of fp32, bf16, f16.
void check_compute_tensor(const Context& ctx, const char* name, const at::Tensor& tensor, at::IntArrayRef shape);

/// A matrix of `rows` rows and `columns` columns (any where negative) and this dtype (one of fp32, bf16, f16 without
/// one), whose rows do not overlap.
void check_matrix(const Context& ctx, const char* name, const at::Tensor& tensor, int64_t rows = -1,
                  int64_t columns = -1, std::optional<at::ScalarType> dtype = std::nullopt);

/// Codes of `rows` rows and `columns` columns with their scales, and any factors (ops/gemm_coded.h).
void check_coded(const Context& ctx, const char* name, const CodedMatrix& matrix, int64_t rows, int64_t columns);

/// As check_tensor, and packed: kernels take it without a stride.
void check_contiguous(const Context& ctx, const char* name, const at::Tensor& tensor, at::IntArrayRef shape,
                      at::ScalarType dtype);

}  // namespace unsloth::ops
