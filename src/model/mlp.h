// The half of a layer that follows attention: output projection, norm and MLP. It treats each token alone, so that it
// may run over some of a micro-batch's rows at a time: its temporary values are then as large as a tile of
// rows.
#pragma once

#include <algorithm>

#include "model/row_range.h"
#include "unsloth/model/decoder_layer.h"

namespace unsloth::model {

/// What the steps that treat each token alone use, cut to the range; `own`: to this rank's slice of it.
LayerSaved rows_of(const LayerSaved& saved, const RowRange& range, const RowRange& own);
Scratch rows_of(const Scratch& scratch, const RowRange& range, const RowRange& own);
GroupContext rows_of(const GroupContext& group, const RowRange& range);

/// work(context, saved, range) for some rows.
template <class Work>
void with_rows(const LayerContext& c, const LayerSaved& saved, const RowRange& range, const Work& work) {
    if (range.rows == range.tokens) return work(c, saved, range);
    const RowRange own = range.slice(c.group.tp);
    const Scratch scratch = rows_of(c.scratch, range, own);
    work(LayerContext{c.spec, rows_of(c.group, range), c.tokens, scratch, c.counts, c.cp}, rows_of(saved, range, own),
         range);
}

/// For each tile of as many rows as scratch.act_full has.
template <class Work>
void each_tile(const LayerContext& c, const LayerSaved& saved, const Work& work) {
    const int64_t tokens = c.scratch.h_full.size(0), tile = c.scratch.act_full.size(0);
    for (int64_t begin = 0; begin < tokens; begin += tile)
        with_rows(c, saved, {begin, std::min(tile, tokens - begin), tokens}, work);
}

/// Steps 5 to 9 of layer_forward, those that are wanted.
void mlp_forward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a,
                 const at::Tensor& x_next_tD, spec::LayerSteps steps);

/// Steps 9 to 5 of layer_backward. Leaves the gradient of attention's output in the first columns of scratch.h_full.
void mlp_backward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a);

}  // namespace unsloth::model
