// Which of a micro-batch's tokens pass at a time, and which of them are this rank's.
#pragma once

#include <algorithm>

#include "unsloth/model/activations.h"
#include "unsloth/model/tensor_parallel.h"

namespace unsloth::model {

/// Some of a micro-batch's tokens, or of this rank's slices of them.
struct RowRange {
    int64_t begin = 0, rows = 0;
    int64_t tokens = 0;  ///< of the micro-batch

    /// Their rows; a buffer of fewer rows than there are tokens holds those of one tile.
    at::Tensor of(const at::Tensor& whole) const {
        if (!whole.defined() || rows == tokens) return whole;
        return whole.narrow(0, whole.size(0) == tokens ? begin : 0, rows);
    }
    /// This rank's slice of them, among its slices of all tokens.
    RowRange slice(const TensorParallel& tp) const {
        const int64_t ranks = tp.place().size;
        return {begin / ranks, rows / ranks, tokens / ranks};
    }
};

/// Calls work(range) for each range of tokens of which every rank has an equal slice: the tiles in which they pass the
/// MLP, and all of them where there is one rank.
template <class Work>
void each_slice(const TensorParallel& tp, const Scratch& scratch, const Work& work) {
    const int64_t tokens = scratch.h_full.size(0), tile = tp.alone() ? tokens : scratch.act_full.size(0);
    for (int64_t begin = 0; begin < tokens; begin += tile)
        work(RowRange{begin, std::min(tile, tokens - begin), tokens});
}

}  // namespace unsloth::model
