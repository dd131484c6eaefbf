// The half of a layer that follows attention: output projection, norm and MLP. It treats each token alone, so that it
// may run over some of a micro-batch's rows at a time: what it makes and nobody keeps is then as large as a tile of
// rows.
#pragma once

#include <algorithm>

#include "unsloth/model/decoder_layer.h"

namespace unsloth::model {

/// Some of a micro-batch's tokens.
struct RowRange {
    int64_t begin = 0, rows = 0;
    int64_t tokens = 0;  ///< of the micro-batch

    /// Their rows; a buffer of fewer rows than there are tokens holds those of one tile.
    at::Tensor of(const at::Tensor& whole) const {
        if (!whole.defined() || rows == tokens) return whole;
        return whole.narrow(0, whole.size(0) == tokens ? begin : 0, rows);
    }
};

/// What steps 5 to 9 use, cut to the range.
LayerSaved rows_of(const LayerSaved& saved, const RowRange& range);
Scratch rows_of(const Scratch& scratch, const RowRange& range);
GroupContext rows_of(const GroupContext& group, const RowRange& range);

/// Calls work(context, saved, range) for each tile of as many rows as scratch.act_full has.
template <class Work>
void each_tile(const LayerContext& c, const LayerSaved& saved, const Work& work) {
    const int64_t tokens = saved.x_TD.size(0), tile = c.scratch.act_full.size(0);
    if (tile >= tokens) return work(c, saved, RowRange{0, tokens, tokens});
    for (int64_t begin = 0; begin < tokens; begin += tile) {
        const RowRange range{begin, std::min(tile, tokens - begin), tokens};
        const Scratch scratch = rows_of(c.scratch, range);
        work(LayerContext{c.spec, rows_of(c.group, range), c.tokens, scratch, c.counts, c.cp}, rows_of(saved, range),
             range);
    }
}

/// Steps 5 to 9 of layer_forward, those that are wanted.
void mlp_forward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a,
                 const at::Tensor& x_next_TD, spec::LayerSteps steps);

/// Steps 9 to 5 of layer_backward. Leaves the gradient of attention's output in the first columns of scratch.h_full.
void mlp_backward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a);

}  // namespace unsloth::model
