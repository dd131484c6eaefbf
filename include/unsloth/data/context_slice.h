// Context parallel: which of a micro-batch's tokens each of the ranks has that share its rows. A segment is cut into
// two chunks a rank, of which rank r has number r and number 2 ranks - 1 - r: so that under causal attention, where the
// last chunk has most to do, all have as much (zig-zag: Llama 3, arXiv 2407.21783, section 3.3.2).
#pragma once

#include <algorithm>
#include <array>

#include "unsloth/data/loader.h"

namespace unsloth::data {

/// A segment's chunks, two per rank. In a padded segment all chunks have room for equally many tokens, and the last one
/// holds the padding. Otherwise larger chunks come first, so that the ranks' sums differ by at most one: those without
/// tokens are the last ones.
class Chunks {
  public:
    Chunks(int32_t begin, int32_t end, int ranks);

    int32_t begin(int chunk) const { return std::min(end_, room_begin(chunk)); }
    int32_t size(int chunk) const { return begin(chunk + 1) - begin(chunk); }
    int32_t room(int chunk) const { return room_begin(chunk + 1) - room_begin(chunk); }
    int count() const { return 2 * ranks_; }
    int rank_of(int chunk) const { return std::min(chunk, mirror(chunk)); }
    std::array<int, 2> of(int rank) const { return {rank, mirror(rank)}; }
    int32_t tokens_of(int rank) const { return room(rank) + room(mirror(rank)); }
    /// Where the chunk's tokens begin among those of this segment that its rank has.
    int32_t offset(int chunk) const { return chunk < ranks_ ? 0 : room(mirror(chunk)); }

  private:
    int mirror(int chunk) const { return 2 * ranks_ - 1 - chunk; }
    int32_t room_begin(int chunk) const { return begin_ + chunk * each_ + std::min(chunk, longer_); }
    int32_t begin_, end_, each_ = 0;
    int ranks_, longer_ = 0;
};

/// A rank's part of a micro-batch: a batch whose segments are chunks, in the order of the segments, and which names in
/// Batch::context the tokens that they attend over. Positions, names of rows and offsets are those of the whole, and
/// targets too, where a chunk's last token predicts the next one's first. The order of tokens (Batch::token_order) is
/// omitted. A batch without tokens stays as it is; a rank that gets none of a few has one that is never read. A segment
/// of 8192 ranks or more tokens is padded with such tokens to a multiple of 256 ranks: all its chunks are as long
/// then. CheckError where segments share tokens.
Batch slice(const Batch& batch, ContextRank cp);

/// What slices of batches within these limits may hold, on whichever rank.
BatchLimits slice_limits(const BatchLimits& whole, ContextRank cp);

}  // namespace unsloth::data
