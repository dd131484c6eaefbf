// cuDNN's dense form for chunks of long sequences, as a context-parallel rank has them: as many queries each, over the
// keys up to their end. Its packed form supports them too, slower: 0.77 of the dense form's rate backward on an H200.
//
// Backward, cuDNN 9.19 also computes the tiles that a diagonal from the bottom right masks (a chunk over 2 chunks of
// keys takes as long as 4 triangles, not 3). So all queries go over all keys before their own at once, without a mask,
// and over their own as a square; both have the statistics of the whole, and their gradients of q are added up.
#pragma once

#include "ops/attention_cases.h"

#if UNSLOTH_CUDA
namespace unsloth::ops {

/// Whether the segments are such chunks, long enough to be worth a plan and a call each.
bool equal_chunks(const Segments& segments);
/// Whether cuDNN has the form in both directions on this card (asked once per kind).
bool cudnn_serves_chunks(const AttentionShape& shape, at::ScalarType dtype, at::Device device);

struct ChunkCall {
    kernels::CudnnCase plan;
    int64_t query = 0, key = 0;  ///< the first
    bool adds = false;           ///< its gradients of q, to those that are there
    /// Of ctx.workspace for them, before cuDNN's.
    int64_t bytes() const;
};
/// `c`: what all of them share, of one direction.
std::vector<ChunkCall> chunk_calls(const kernels::CudnnCase& c, const AttentionShape& shape, const Segments& segments);
/// The calls of chunks of `queries` queries within `keys` keys.
std::vector<ChunkCall> calls_of_chunk(kernels::CudnnCase c, const AttentionShape& shape, int64_t queries, int64_t keys);

/// What a chunk may take of ctx.workspace, of any length within the sizes.
int64_t chunks_workspace(const AttentionShape& shape, at::ScalarType dtype, at::Device device,
                         const PackedLimits& sizes, bool backward);

void attention_forward_by_chunks(const Context& ctx, const std::vector<ChunkCall>& calls, const AttentionForward& args);
void attention_backward_by_chunks(Context& ctx, const std::vector<ChunkCall>& calls, const AttentionBackward& args);

}  // namespace unsloth::ops
#endif
