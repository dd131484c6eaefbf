// Attention of ranges of queries to ranges of keys, each query to all of its range's: a tower's, and that of text over
// image features.
//
// Legend: T query rows, S key rows, H heads, K kv heads (K divides H), d head_dim.
#pragma once

#include <vector>

#include "unsloth/ops/attention.h"

namespace unsloth::ops {

/// Queries [q_begin, q_end) attend to keys [k_begin, k_end), which are not empty. Ranges of queries do not overlap, and
/// ascend; those of keys may be anywhere.
struct AttentionRange {
    int32_t q_begin = 0, q_end = 0, k_begin = 0, k_end = 0;
    bool operator==(const AttentionRange&) const = default;
};

/// Each segment attends to itself. offsets: where they begin, and where the last one ends.
std::vector<AttentionRange> own_ranges(const std::vector<int32_t>& offsets);

/// out_THd = softmax(scale q k^T) v of each range; zeros for queries in none. shape's window and sinks are not used.
/// q, k, v, out: compute dtype, last dimension contiguous, other strides free. lse_HT: fp32, contiguous, receives the
/// natural log-sum-exp of each row for the backward pass; undefined where there is none. fp32 arithmetic, out rounded
/// once on the CPU; on CUDA the kernels of cuDNN (ranges of 256 rows and more) and LibTorch, which take memory of the
/// allocator (range_attention_library_bytes).
void range_attention_forward(Context& ctx, const AttentionShape& shape, const std::vector<AttentionRange>& ranges,
                             const at::Tensor& q_THd, const at::Tensor& k_SKd, const at::Tensor& v_SKd,
                             const at::Tensor& out_THd, const at::Tensor& lse_HT = {});

/// dq, dk, dv = gradients for the out and lse of the forward (written, not accumulated; zeros for rows in no range).
/// A key's gradient is a sum over the ranges that have it. Not aliasing the inputs. The sums have a fixed order on the
/// CPU, and on CUDA with ctx.deterministic, where plain products take the place of these kernels.
void range_attention_backward(Context& ctx, const AttentionShape& shape, const std::vector<AttentionRange>& ranges,
                              const at::Tensor& dout_THd, const at::Tensor& q_THd, const at::Tensor& k_SKd,
                              const at::Tensor& v_SKd, const at::Tensor& out_THd, const at::Tensor& lse_HT,
                              const at::Tensor& dq_THd, const at::Tensor& dk_SKd, const at::Tensor& dv_SKd);

/// What these take at most of LibTorch's allocator for up to this many queries and keys (0 on the CPU).
int64_t range_attention_library_bytes(at::Device device, at::ScalarType dtype, const AttentionShape& shape,
                                      int64_t queries, int64_t keys, bool backward, bool deterministic = false);

}  // namespace unsloth::ops
