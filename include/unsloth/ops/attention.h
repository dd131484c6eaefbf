// Causal grouped-query attention over flat tokens with segments and a sliding window.
//
// Legend: T query tokens, S key tokens, H heads, K kv heads (K divides H), d head_dim.
// Queries of a segment stand at the end of its keys (bottom-right causal): with S = T that is plain causal attention,
// with a KV cache a segment has more keys than queries. A position sees keys i with q - window < i <= q (window 0: all).
#pragma once

#include <vector>

#include "unsloth/ops/context.h"

namespace unsloth::ops {

/// Where segments begin, on the host and on the device. n segments; offsets have n + 1 entries, strictly growing.
struct Segments {
    std::vector<int32_t> q_offsets, k_offsets;
    at::Tensor q_offsets_device, k_offsets_device;  ///< int32, capacity may exceed n + 1
    int32_t max_q = 0, max_k = 0;                   ///< longest segment
    bool uniform = false;                           ///< equal lengths and q = k: the dense fast path
    int64_t count() const { return static_cast<int64_t>(q_offsets.size()) - 1; }
};

struct AttentionShape {
    int64_t heads = 0, kv_heads = 0, head_dim = 0;
    int64_t window = 0;   ///< 0: unlimited
    double scale = 0;     ///< 1 / sqrt(head_dim) usually
};

/// Which implementation serves a case; host code, tested without a GPU.
enum class AttentionPath { cpu, cudnn, portable };
/// cudnn: bf16/f16, head_dim a multiple of 8 up to 256 that cuDNN serves in both directions on this card; portable (own kernels,
/// any dtype and head_dim up to 256, fixed order of summation): everything else.
AttentionPath attention_path(const AttentionShape& shape, at::ScalarType dtype, at::Device device, bool deterministic);

/// out_THd = softmax(scale q k^T + mask) v. q_THd, k_SKd, v_SKd, out_THd: compute dtype, last dimension contiguous, strides of T
/// and heads free (views of a fused QKV buffer). lse_HT (fp32, contiguous, [H, T]): natural log-sum-exp of each row, for
/// the backward pass; undefined when not needed.
void attention_forward(Context& ctx, const AttentionShape& shape, const Segments& segments, const at::Tensor& q_THd,
                       const at::Tensor& k_SKd, const at::Tensor& v_SKd, const at::Tensor& out_THd, const at::Tensor& lse_HT);

/// dq, dk, dv = gradients (written, not accumulated; views of one fused buffer allowed; never aliasing q, k, v).
/// Scratch comes from ctx.workspace.
void attention_backward(Context& ctx, const AttentionShape& shape, const Segments& segments, const at::Tensor& dout_THd,
                        const at::Tensor& q_THd, const at::Tensor& k_SKd, const at::Tensor& v_SKd, const at::Tensor& out_THd,
                        const at::Tensor& lse_HT, const at::Tensor& dq_THd, const at::Tensor& dk_SKd, const at::Tensor& dv_SKd);

/// Bytes of ctx.workspace that forward and backward may take for up to `tokens` tokens in up to `segments` segments of up to
/// `longest` tokens (0 on the CPU).
int64_t attention_workspace(const AttentionShape& shape, at::ScalarType dtype, at::Device device, bool deterministic,
                            int64_t tokens, int64_t segments, int64_t longest);

/// fp32 elements of lse that a forward over `tokens` tokens needs (H * T; more where an implementation pads).
int64_t attention_lse_elements(const AttentionShape& shape, at::ScalarType dtype, at::Device device, bool deterministic,
                               int64_t tokens, int64_t segments, int64_t longest);

}  // namespace unsloth::ops
