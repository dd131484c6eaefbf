// What the implementations of attention share, and the choice between them on CUDA (also made by hand in
// tests and benchmarks).
#pragma once

#include <optional>

#include "ops/attention_packed.h"
#include "unsloth/ops/attention.h"

namespace unsloth::ops {

struct AttentionForward {
    at::Tensor q, k, v, out, lse;  ///< lse may be undefined
    at::Tensor sinks = {};         ///< undefined: there are none; on CUDA lse is defined with them
};
struct AttentionBackward {
    at::Tensor dout, q, k, v, out, lse, dq, dk, dv;
};

/// CheckError unless sinks_H fits the shape and q.
void check_sinks(const AttentionShape& shape, const at::Tensor& q, const at::Tensor& sinks_H);

void attention_cpu_forward(const Context& ctx, const AttentionShape& shape, const Segments& segments,
                           const AttentionForward& args);
void attention_cpu_backward(const Context& ctx, const AttentionShape& shape, const Segments& segments,
                            const AttentionBackward& args);
int64_t attention_cpu_workspace(const AttentionShape& shape, at::ScalarType dtype, int64_t longest, bool backward);

/// Whether attention of this kind is cuDNN's on some card.
bool cudnn_may_serve(const AttentionShape& shape, at::ScalarType dtype);
/// The frontend calls packed backward passes of other head_dims a known functional issue.
inline bool packed_backward_serves(const AttentionShape& shape) {
    return shape.head_dim % 16 == 0;
}
/// What the scores may take that cuDNN's deterministic backward keeps, in 16 bit, for every head and sequence (S x S).
inline constexpr int64_t repeatable_scores = int64_t{2} << 30;  // 8 rows of 2048 tokens, 32 heads
/// What they take of `rows` rows of one length.
int64_t repeatable_bytes(const AttentionShape& shape, int64_t rows, int64_t length);
/// Whether it supports rows of one length: it takes as many of them, or kv heads of one, as repeatable_scores allows.
bool cudnn_may_repeat(const AttentionShape& shape, int64_t length);

#if UNSLOTH_CUDA
/// dense: cuDNN over [B, H, S, d]; chunks: the same for chunks of long sequences (attention_chunks.h); tiles: the same
/// backward, with bits that repeat (attention_tiles.h); packed: cuDNN with ragged offsets; portable: own kernels
/// (attention_portable.h).
enum class CudaForm { dense, chunks, tiles, packed, portable };

/// The kernels that run, and the form whose order lse has. They differ where a call falls back: the portable
/// kernels take any order, so that forward and backward may be served by different kernels.
struct CudaChoice {
    CudaForm kernels = CudaForm::portable;
    CudaForm lse_order = CudaForm::portable;
    bool by_heads = false;  ///< beyond what cuDNN's offsets reach (attention_by_heads.h)
};

CudaChoice choose_forward(const Context& ctx, const AttentionShape& shape, const Segments& segments,
                          const AttentionForward& args);
CudaChoice choose_backward(const Context& ctx, const AttentionShape& shape, const Segments& segments,
                           const AttentionBackward& args);
void attention_cuda_forward(Context& ctx, const AttentionShape& shape, const Segments& segments,
                            const AttentionForward& args, CudaChoice choice);
void attention_cuda_backward(Context& ctx, const AttentionShape& shape, const Segments& segments,
                             const AttentionBackward& args, CudaChoice choice);
/// Whether cuDNN supports this kind of attention in both directions, with equal lengths (asked once per kind).
bool cudnn_serves(const AttentionShape& shape, at::ScalarType dtype, at::Device device);
/// What cuDNN takes at most; `backward`: in that direction, too. None where it does not serve.
std::optional<int64_t> attention_cudnn_workspace(const AttentionShape& shape, at::ScalarType dtype, at::Device device,
                                                 bool deterministic, const PackedLimits& sizes, bool backward);
#endif

}  // namespace unsloth::ops
