// The CPU's part of ops/dora.h; arguments are checked by the caller.
#pragma once

#include "unsloth/ops/dora.h"

namespace unsloth::ops::cpu {

void row_square_sums(const at::Tensor& w, const at::Tensor& out);
void dora_norms(const DoraNorms& args);
void dora_forward(const at::Tensor& z, const OutputScale& scale, const at::Tensor& residual, const at::Tensor& y);
void dora_backward(const at::Tensor& dy, const at::Tensor& z, const OutputScale& scale, const at::Tensor& dz,
                   const std::vector<MagnitudeGradient>& gradients);
void dora_swiglu_forward(const at::Tensor& z, const OutputScale& scale, const at::Tensor& act,
                         spec::GateActivation activation);
void dora_swiglu_backward(const at::Tensor& dact, const at::Tensor& z, const OutputScale& scale, const at::Tensor& act,
                          const std::vector<MagnitudeGradient>& gradients, spec::GateActivation activation);

}  // namespace unsloth::ops::cpu
