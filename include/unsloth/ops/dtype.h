// The one table of our dtypes and LibTorch's.
#pragma once

#include <ATen/core/Tensor.h>

#include "unsloth/spec/dtype.h"

namespace unsloth::ops {

at::ScalarType scalar_type(spec::DType type);

/// CheckError for a type that has no name of ours.
spec::DType dtype_of(at::ScalarType type);
inline spec::DType dtype_of(const at::Tensor& tensor) {
    return dtype_of(tensor.scalar_type());
}

}  // namespace unsloth::ops
