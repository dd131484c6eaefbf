// int8 codes: what has no kernel of its own.
#pragma once

#include "unsloth/ops/gemm_coded.h"

namespace unsloth::ops {

/// x's rows, on the CPU.
void quantize_int8_cpu(const at::Tensor& x_TC, const CodedMatrix& out);
/// A weight's rows and their factors, on any device; for loading. w_NK may be a transposed view.
void quantize_int8_weight(const at::Tensor& w_NK, const CodedMatrix& out);

}  // namespace unsloth::ops
