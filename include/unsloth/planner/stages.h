// Where a pipeline's stages are cut: so that the rank that takes longest takes least.
#pragma once

#include <vector>

#include "unsloth/spec/stage.h"

namespace unsloth::planner {

/// What the parts of a network take for one micro-batch, both ways, in one unit; a layer more than 0.
struct PartTimes {
    double embedding = 0, head = 0, layer = 1;
    int layers = 0;
};

/// Contiguous ranges of at least one layer each, in the order of the network: `chunks` of each rank, of which number n
/// is rank n mod `ranks`'s. The first has the embeddings in addition to its layers, the last one the head. Of all cuts
/// that give no rank more layers than `most` says (empty: any number), those whose slowest rank takes least, with all
/// of its ranges; of these those whose slowest range does, and of these the most even one. Empty where there is none.
std::vector<spec::LayerRange> cut_layers(const PartTimes& times, int ranks, int chunks = 1,
                                         const std::vector<int>& most = {});

}  // namespace unsloth::planner
