// Context parallel: which of a micro-batch's tokens each of the ranks has that share its rows. A segment is cut into
// two chunks a rank, of which rank r has number r and number 2 ranks - 1 - r: so that under causal attention, where the
// last chunk has most to do, all have as much (zig-zag: Llama 3, arXiv 2407.21783, section 3.3.2).
#pragma once

#include "unsloth/data/loader.h"

namespace unsloth::data {

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
