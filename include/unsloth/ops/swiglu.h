// SwiGLU (Shazeer, 2020): act = silu(gate) * up, on the fused [gate | up] buffer.
#pragma once

#include "unsloth/ops/context.h"

namespace unsloth::ops {

/// gu_T2F: [T, 2F], gate in columns 0..F, up in F..2F; act_TF: [T, F]. Row strides free. fp32 arithmetic.
void swiglu_forward(Context& ctx, const at::Tensor& gu_T2F, const at::Tensor& act_TF);

/// Overwrites gu_T2F with its gradient [dgate | dup], given dact_TF. act_TF, where defined, receives what
/// swiglu_forward gave, bit for bit, in the same pass (6 F read and written a token, 8 F as two calls); it
/// may be dact_TF.
void swiglu_backward(Context& ctx, const at::Tensor& dact_TF, const at::Tensor& gu_T2F, const at::Tensor& act_TF = {});

}  // namespace unsloth::ops
