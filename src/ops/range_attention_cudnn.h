// Long ranges of ops/range_attention.h by cuDNN: its packed form of one sequence, so that few plans serve all lengths.
//
// On an H200 (cuDNN 9.19, bf16, 16 heads of 80, 6,432 rows) forward and backward take 0.61 and 1.65 ms, where
// LibTorch's flash attention takes 0.93 and 2.80.
#pragma once

#include "unsloth/ops/range_attention.h"

namespace unsloth::ops {

/// Lengths of queries and keys that a plan is made for: the next power of two, at least 256.
int64_t range_bucket(int64_t length);

/// What cuDNN takes at most for a range: its scratch, and gradients of keys and values before they are added. 0 for
/// lengths that it is not given.
int64_t range_cudnn_bytes(const AttentionShape& shape, int64_t queries, int64_t keys, bool backward);

#if UNSLOTH_CUDA
/// False, and nothing is done, for ranges that are too short to win, types, sizes and strides that cuDNN does not take,
/// and cards that it has no plan for. Arguments as range_attention_forward's.
bool range_forward_cudnn(const Context& ctx, const AttentionShape& shape, const AttentionRange& range,
                         const at::Tensor& q_THd, const at::Tensor& k_SKd, const at::Tensor& v_SKd,
                         const at::Tensor& out_THd, const at::Tensor& lse_HT);
/// Writes dq of the range and adds to dk and dv. Sums have no fixed order.
bool range_backward_cudnn(const Context& ctx, const AttentionShape& shape, const AttentionRange& range,
                          const at::Tensor& dout_THd, const at::Tensor& q_THd, const at::Tensor& k_SKd,
                          const at::Tensor& v_SKd, const at::Tensor& out_THd, const at::Tensor& lse_HT,
                          const at::Tensor& dq_THd, const at::Tensor& dk_SKd, const at::Tensor& dv_SKd);
#endif

}  // namespace unsloth::ops
