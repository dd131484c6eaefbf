// Attention's backward pass with bits that repeat, of rows that cuDNN's repeatable form does not take whole: those of
// which one kv head has more scores than are kept for it, those whose lengths differ, and chunks of them (context
// parallel).
//
// One kv head of one row at a time is copied to dense tiles: as long as its scores allow, the last filled up with zeros
// to a multiple of 256. Each tile of queries goes over the tiles of keys before it without a mask and over its own as a
// causal square, all with the statistics of whole rows; the parts that they give, in 16 bit, are added up in fp32, in
// one order. Of zeros come zeros: a query of the filling has dout = 0, and a key of it is seen by no other query.
#pragma once

#include <vector>

#include "ops/attention_impl.h"

namespace unsloth::ops {

/// Mean length of rows from which on they are served so; our own kernels, which need no filling up, take 1.7 to 1.9
/// times as long there (H200). Shorter ones were not measured.
inline constexpr int64_t worth_tiles = 8192;

/// The longest tile that a row of `queries` queries may be cut into, by the scores of one kv head. A multiple of 256.
int64_t longest_tile(const AttentionShape& shape, int64_t queries);
/// Whether rows may be served so: no window is felt in them, and their mean length is worth it.
bool tiles_may_serve(const AttentionShape& shape, int64_t queries, int64_t rows, int64_t longest_keys);
/// Queries of a row over keys, both from these on: their own, as many and a causal square, or others before all of
/// them.
struct TileCall {
    int64_t query, queries, key, keys;
    bool own;
};
/// A row's, whose queries stand at the end of its keys: of each tile of queries those over keys before it, from key 0
/// on, then the one over its own. The last has queries, and keys of their own, up to a multiple of 256.
std::vector<TileCall> tile_calls(int64_t queries, int64_t keys, int64_t longest);
/// Bytes of the copies and sums for any row of up to `queries` queries and `keys` keys, without cuDNN's for a tile.
int64_t tiles_bytes(const AttentionShape& shape, int64_t queries, int64_t keys);

#if UNSLOTH_CUDA
/// What cuDNN takes for a tile of this length, and for it over `before` other keys, if any; none where it has no plan.
std::optional<int64_t> tile_workspace(const AttentionShape& shape, at::ScalarType dtype, at::Device device,
                                      int64_t length, int64_t before);
/// What all of that is for these rows; none where they are not served so.
std::optional<int64_t> tiles_workspace(const AttentionShape& shape, at::ScalarType dtype, at::Device device,
                                       const Segments& segments);

/// As attention_cuda_backward. Heads of each tensor are adjacent. `longest`: of its tiles, a multiple of 256.
void attention_backward_by_tiles(Context& ctx, const AttentionShape& shape, const Segments& segments,
                                 const AttentionBackward& args, CudaForm lse_order, int64_t longest);
#endif

}  // namespace unsloth::ops
