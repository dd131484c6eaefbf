// Checks that every operator makes once on its tensors, before it dispatches: a wrong call is a bug of ours, found here
// and not by a kernel.
#pragma once

#include <initializer_list>

#include "unsloth/core/error.h"
#include "unsloth/ops/context.h"
#include "unsloth/spec/dtype.h"

namespace unsloth::ops {

/// Our name of a LibTorch dtype; CheckError for types that operators do not know.
spec::DType dtype_of(const at::Tensor& tensor);

/// fp32, bf16 or f16.
bool is_compute_dtype(at::ScalarType type);

/// `name` is on the context's device, has this shape and dtype, and a contiguous last dimension; the other strides are
/// free (not negative). A context's device has an index on CUDA.
void check_tensor(const Context& ctx, const char* name, const at::Tensor& tensor, at::IntArrayRef shape,
                  at::ScalarType dtype);

/// The same for any of fp32, bf16, f16.
void check_compute_tensor(const Context& ctx, const char* name, const at::Tensor& tensor, at::IntArrayRef shape);

/// The same, and packed: kernels take it without a stride.
void check_contiguous(const Context& ctx, const char* name, const at::Tensor& tensor, at::IntArrayRef shape,
                      at::ScalarType dtype);

}  // namespace unsloth::ops
