// Attention of one kv head after the other, over copies with adjacent heads. cuDNN's backward kernels count the
// elements of an operand in 32 bits with a sign: beyond 2^31 of them (349,525 tokens of an 8B model's fused q, k, v)
// cuDNN 9.19 reads wrong rows and says nothing (seen on an H200; LargeTensorsGpu.Attention). For such long rows the
// time of the copies, two reads and writes of each operand, is negligible. Beyond 2^31 elements of the copies cuDNN is
// not used.
#pragma once

#include <initializer_list>

#include "ops/attention_impl.h"

namespace unsloth::ops {

/// The most tokens of a layer's fused q, k, v that cuDNN's offsets reach. What it keeps of every head is narrower.
int64_t reachable_tokens(const AttentionShape& shape);
/// The most of a kv head's copies, so that a longer pass is not cuDNN's: 4,194,176 of an 8B model, 524,160 of 32 heads
/// of 128 on one kv head. A multiple of 128, to which plans round the longest segment.
int64_t reachable_tokens_by_heads(const AttentionShape& shape);
/// Whether the offsets reach `elements` elements.
bool within_reach(int64_t elements);

/// What cuDNN can be given of a pass: all at once, a kv head at a time, nothing.
enum class Reach { whole, by_heads, nothing };
/// As plan and call decide it. `rows`: the more of its queries and keys; `elements`: the most that one of its tensors
/// spans.
Reach reach_of(const AttentionShape& shape, int64_t rows, int64_t elements);
/// The same of the tensors [tokens, heads, d] of a call.
Reach reach_of(const AttentionShape& shape, std::initializer_list<const at::Tensor*> tensors);

/// What a call for one kv head and its query heads is.
AttentionShape one_kv_head(const AttentionShape& shape);
/// Bytes of the copies, without what such a call takes itself.
int64_t kv_head_bytes(const AttentionShape& shape, int64_t tokens, int64_t keys, bool backward);

#if UNSLOTH_CUDA
/// What belongs to a kv head of x [tokens, heads, d], `count` heads a kv head, as rows: a view, or c10::Error.
at::Tensor heads_of(const at::Tensor& x, int64_t kv_head, int64_t count);

/// As attention_cuda_forward and _backward in this form of cuDNN's. Heads of each tensor are adjacent. The copies
/// are at the front of ctx.workspace.
void attention_forward_by_heads(Context& ctx, const AttentionShape& shape, const Segments& segments,
                                const AttentionForward& args, CudaForm form);
void attention_backward_by_heads(Context& ctx, const AttentionShape& shape, const Segments& segments,
                                 const AttentionBackward& args, CudaForm form);

#endif

}  // namespace unsloth::ops
