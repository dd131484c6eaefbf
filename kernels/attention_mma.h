// Attention by tensor cores on any card from sm_80 on, forward and backward with a fixed order of summation (no
// atomics): the portable form's kernels for 16-bit rows of head_dim up to 256 (attention_portable.h). Tiles, online
// softmax and recomputed probabilities after Dao, "FlashAttention-2" (2023).
//
// Sums are fp32; the probabilities and their gradients are rounded to the rows' type before they meet v, k, q and dout,
// as cuDNN's.
#pragma once

#include "kernels/attention_portable.h"

namespace unsloth::kernels {

/// Whether these kernels take such rows at all: bf16 or f16, head_dim a multiple of 8 up to 256.
bool attention_mma_serves(spec::DType dtype, int head_dim);
/// And these: pointers and strides that are multiples of 16 bytes too.
bool attention_mma_serves(const PortableAttention& args);
bool attention_mma_serves(const PortableAttention& args, const PortableAttentionGradients& gradients);

/// As attention_portable_forward and _backward, for what they serve.
void attention_mma_forward(const PortableAttention& args, cudaStream_t stream);
void attention_mma_backward(const PortableAttention& args, const PortableAttentionGradients& gradients,
                            cudaStream_t stream);

}  // namespace unsloth::kernels
