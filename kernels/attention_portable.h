// Attention on any CUDA card with a fixed order of summation (no atomics): the path of fp32 runs, the backward of
// deterministic ones, and the fallback. Tiles and online softmax after Dao, "FlashAttention-2" (2023). Tensor cores
// serve 16-bit rows where they can (attention_mma.h); everything else is fp32 arithmetic without them.
//
// Legend: T query tokens, S key tokens, H heads, K kv heads, d head_dim.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "unsloth/spec/dtype.h"

namespace unsloth::kernels {

inline constexpr int portable_most_head_dim = 256;

/// A [tokens, heads, d] tensor; d is contiguous, strides in elements.
struct HeadRows {
    void* data = nullptr;
    int64_t row_stride = 0, head_stride = 0;
};

/// One number for each row and head. That of row i of head h, in a segment whose first token is t, is
/// data[t * token_stride + h * head_stride + i * row_stride]: one formula for the three orders below.
struct RowStatistics {
    float* data = nullptr;
    int64_t token_stride = 0;  ///< multiplies the segment's first token
    int64_t head_stride = 0;   ///< multiplies the head
    int64_t row_stride = 0;    ///< multiplies the row within the segment

    /// [H, T]
    static RowStatistics by_head(float* data, int64_t tokens) { return {data, 1, tokens, 1}; }
    /// [T, H]
    static RowStatistics by_token(float* data, int64_t heads) { return {data, heads, 1, heads}; }
    /// [B, H, S]: segments of one length
    static RowStatistics by_segment(float* data, int64_t heads, int64_t length) { return {data, heads, length, 1}; }
};

struct PortableAttention {
    spec::DType dtype = spec::DType::f32;  ///< f32, bf16, f16
    int heads = 0, kv_heads = 0, head_dim = 0;
    int window = 0;  ///< 0: unlimited
    float scale = 0;
    const int32_t* q_offsets = nullptr;  ///< device, [segments + 1]
    const int32_t* k_offsets = nullptr;
    int segments = 0;
    int64_t q_tokens = 0, k_tokens = 0;
    HeadRows q, k, v, out;
    RowStatistics lse;  ///< data nullptr in the forward: not wanted
};

struct PortableAttentionGradients {
    HeadRows dout, dq, dk, dv;
    float* delta = nullptr;  ///< scratch, H * T
};

/// Issue on `stream`; runtime Error when a launch fails.
void attention_portable_forward(const PortableAttention& args, cudaStream_t stream);
void attention_portable_backward(const PortableAttention& args, const PortableAttentionGradients& gradients,
                                 cudaStream_t stream);

}  // namespace unsloth::kernels
