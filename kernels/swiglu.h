// Launchers of SwiGLU on the fused [gate | up] buffer; see include/unsloth/ops/swiglu.h.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/rows_view.h"
#include "unsloth/spec/dtype.h"
#include "unsloth/spec/gate_activation.h"

namespace unsloth::kernels {

struct SwigluForward {
    int64_t tokens = 0;
    int64_t columns = 0;  ///< F
    spec::DType type = spec::DType::bf16;
    ConstMatrix gate_up;  ///< [tokens, 2 F]
    Matrix act;           ///< [tokens, F]
    spec::GateActivation activation = spec::GateActivation::silu;
    float limit = spec::default_gate_limit;  ///< of GateActivation::clamped_silu
};
void swiglu_forward(const SwigluForward& params, cudaStream_t stream);

struct SwigluBackward {
    int64_t tokens = 0;
    int64_t columns = 0;
    spec::DType type = spec::DType::bf16;
    ConstMatrix dact;  ///< [tokens, F]
    Matrix gate_up;    ///< [tokens, 2 F], becomes its gradient
    Matrix act;        ///< [tokens, F]: the forward's output, rebuilt; may be dact; no data: not wanted
    spec::GateActivation activation = spec::GateActivation::silu;
    float limit = spec::default_gate_limit;  ///< of GateActivation::clamped_silu
};
void swiglu_backward(const SwigluBackward& params, cudaStream_t stream);

}  // namespace unsloth::kernels
