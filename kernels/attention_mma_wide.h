// The part of attention_mma_backward for heads of more than 128 columns.
#pragma once

#include "kernels/attention_mma.h"

namespace unsloth::kernels {

/// dq, dk and dv; gradients.delta is there already.
void attention_mma_wide_backward(const PortableAttention& args, const PortableAttentionGradients& gradients,
                                 cudaStream_t stream);

}  // namespace unsloth::kernels
