// What 8-bit codes stand for (ops/gemm_coded.h), on the CPU.
#pragma once

#include "unsloth/ops/gemm_coded.h"

namespace unsloth::ops {

/// In fp32, as a product multiplies them: of int8 without the factors, which cancel there.
at::Tensor levelled_values(const CodedMatrix& matrix);
/// In fp32, of rows of x.
at::Tensor values_of(const CodedMatrix& x);

}  // namespace unsloth::ops
