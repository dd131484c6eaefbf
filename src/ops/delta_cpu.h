// The delta rule on the CPU, a token after the other (ops/gated_delta.h).
#pragma once

#include "unsloth/ops/gated_delta.h"

namespace unsloth::ops::cpu {

void delta_forward(const DeltaShape& shape, const Segments& segments, const DeltaInputs& in, const at::Tensor& o_THv,
                   const KeptStates& kept, const DeltaTurns& turns);
void delta_backward(const DeltaShape& shape, const Segments& segments, const DeltaInputs& in, const at::Tensor& do_THv,
                    const at::Tensor& states, const DeltaGradients& out, const DeltaResumed& resumed);

}  // namespace unsloth::ops::cpu
