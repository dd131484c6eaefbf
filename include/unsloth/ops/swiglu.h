// SwiGLU (Shazeer, 2020): act = silu(gate) * up, on the fused [gate | up] buffer; and with another activation.
#pragma once

#include "unsloth/ops/gemm_coded.h"
#include "unsloth/spec/gate_activation.h"

namespace unsloth::ops {

/// gu_T2F: [T, 2F], gate in columns 0..F, up in F..2F; act_TF: [T, F]. Row strides free. fp32 arithmetic. `codes` (may
/// be empty) receive act's, as ops/coded_rows.h makes them. `limit`: of GateActivation::clamped_silu; without codes.
void swiglu_forward(Context& ctx, const at::Tensor& gu_T2F, const at::Tensor& act_TF, const CodedMatrix& codes = {},
                    spec::GateActivation activation = spec::GateActivation::silu,
                    float limit = spec::default_gate_limit);

/// Overwrites gu_T2F with its gradient [dgate | dup], given dact_TF. act_TF, where defined, receives what
/// swiglu_forward gave, bit for bit, in the same pass (6 F read and written a token, 8 F as two calls); it may be
/// dact_TF. `codes` (may be empty) receive those of [dgate | dup]; codes_alone: gu_T2F is not read after it.
void swiglu_backward(Context& ctx, const at::Tensor& dact_TF, const at::Tensor& gu_T2F, const at::Tensor& act_TF = {},
                     const CodedMatrix& codes = {}, bool codes_alone = false,
                     spec::GateActivation activation = spec::GateActivation::silu,
                     float limit = spec::default_gate_limit);

}  // namespace unsloth::ops
