// Causal grouped-query attention over flat tokens with segments and a sliding window.
//
// Legend: T query tokens, S key tokens, H heads, K kv heads (K divides H), d head_dim.
// Queries of a segment stand at the end of its keys (bottom-right causal): with S = T that is plain causal
// attention, with a KV cache a segment has more keys than queries. A position sees keys i with q - window < i
// <= q (window 0: all). Algorithms: Dao, "FlashAttention-2" (2023), for the tiled forms; the plain definition
// on the CPU.
#pragma once

#include <vector>

#include "unsloth/ops/context.h"

namespace unsloth::ops {

/// Where segments begin, on the host and on the device. n segments; offsets have n + 1 entries, strictly
/// growing.
struct Segments {
    std::vector<int32_t> q_offsets, k_offsets;
    at::Tensor q_offsets_device, k_offsets_device;  ///< int32, capacity may exceed n + 1; read on CUDA only
    int32_t max_q = 0, max_k = 0;                   ///< longest segment
    bool uniform = false;                           ///< equal lengths and q = k: the dense fast path
    int64_t count() const { return static_cast<int64_t>(q_offsets.size()) - 1; }
};

struct AttentionShape {
    int64_t heads = 0, kv_heads = 0, head_dim = 0;
    int64_t window = 0;  ///< 0: unlimited
    double scale = 0;    ///< 1 / sqrt(head_dim) usually
    bool sinks = false;  ///< each head's softmax has one more logit, which has no value: calls pass sinks_H
};

/// out_THd = softmax(scale q k^T + mask) v. q_THd, k_SKd, v_SKd, out_THd: compute dtype (fp64 too on the
/// CPU), last dimension contiguous, strides of T and heads free (views of a fused QKV buffer). Arithmetic in
/// fp32, out rounded once (tensor cores take the probabilities rounded to the compute dtype). lse: fp32
/// (fp64 with fp64 inputs), contiguous, at least attention_lse_elements; receives the natural log-sum-exp of
/// each row for the backward pass. Its order is the implementation's own ([H, T] on the CPU and in the
/// portable form; on cuDNN [B, H, S] for equally many queries a segment and [T, H] otherwise): hand it unread to the
/// backward with the same segments. Undefined when there is no backward.
/// sinks_H: lse's dtype, contiguous, for a shape with sinks. With l the log-sum-exp over the keys, out is multiplied by
/// exp(l - l') and lse receives l' = log(exp(l) + exp(sink)). These two are all that the backward pass needs. On CUDA a
/// kernel after the forward does so: out is rounded twice, and a call without lse takes one from ctx.workspace.
///
/// CUDA: cuDNN runs bf16 and f16 with a head_dim that is a multiple of 8 up to 256, where it supports both
/// directions on this card (asked once, then remembered), unless ctx.kernels has measured the portable form to be
/// faster in a direction. The portable form runs everything else. It has own kernels of any dtype and head_dim up to
/// 256 with a fixed order of summation, on tensor cores where a 16-bit dtype, a head_dim that is a multiple of 8 and
/// 16-byte alignment let them. It also runs these cases of cuDNN's: more keys than queries where they were not
/// planned for (attention_workspace); pointers or strides that are no multiple of 16 bytes; segments of unequal
/// length when cuDNN has no packed form for the head_dim; with ctx.deterministic the backward of unequal lengths, or
/// of rows of which one kv head has more than 2 GiB of scores (16,384 tokens of four heads). Of these, cuDNN runs
/// rows of at least 8,192 tokens in the mean in tiles, of any alignment and number, where no window applies, a
/// token's heads are adjacent, and keys before a segment's queries are a multiple of 128. cuDNN's backward kernels
/// do not reach beyond 2^31 elements of a tensor, or of as many rows of q, k and v: there it gets one kv head at a
/// time, and a token's heads must be adjacent. Beyond as many elements of one kv head's queries the portable form is
/// used.
void attention_forward(Context& ctx, const AttentionShape& shape, const Segments& segments, const at::Tensor& q_THd,
                       const at::Tensor& k_SKd, const at::Tensor& v_SKd, const at::Tensor& out_THd,
                       const at::Tensor& lse, const at::Tensor& sinks_H = {});

/// dq, dk, dv = gradients for the out and lse of the forward, with sinks or without (written, not accumulated; views of
/// one fused buffer allowed; never aliasing q, k, v, out, dout). Scratch comes from ctx.workspace; CheckError when it
/// is smaller than the portable form needs (on the CPU it is then allocated).
void attention_backward(Context& ctx, const AttentionShape& shape, const Segments& segments, const at::Tensor& dout_THd,
                        const at::Tensor& q_THd, const at::Tensor& k_SKd, const at::Tensor& v_SKd,
                        const at::Tensor& out_THd, const at::Tensor& lse, const at::Tensor& dq_THd,
                        const at::Tensor& dk_SKd, const at::Tensor& dv_SKd);

/// Bytes of ctx.workspace that forward and (with `backward`) backward may take for up to `tokens` tokens in
/// up to `segments` segments of up to `longest` tokens. On cuDNN this builds the plans of the
/// largest case, so that the first step finds them, and remembers the three numbers (per device, heads,
/// head_dim and dtype; the latest call counts): packed plans are made for them, so that batches of changing
/// size share a few plans. Call it before the first step, again when the sizes grow. `keys`: the most that all
/// segments have, where some have more of them than queries; 0: none do, or they are to be served by the portable
/// kernels. `row`: the most elements from one token to the next, where that may be more than q, k and v have together.
int64_t attention_workspace(const AttentionShape& shape, at::ScalarType dtype, at::Device device, bool deterministic,
                            int64_t tokens, int64_t segments, int64_t longest, bool backward = true, int64_t keys = 0,
                            int64_t row = 0);

/// Elements of lse that a forward over `tokens` tokens needs: H * T.
int64_t attention_lse_elements(const AttentionShape& shape, int64_t tokens);

}  // namespace unsloth::ops
