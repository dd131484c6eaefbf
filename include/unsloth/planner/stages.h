// Where a pipeline's stages are cut: so that the one that takes longest takes least.
#pragma once

#include <functional>
#include <vector>

#include "unsloth/spec/stage.h"

namespace unsloth::planner {

/// What the parts of a network take for one micro-batch, both ways, in one unit.
struct PartTimes {
    double embedding = 0, head = 0;
    std::vector<double> layers;
};

/// Contiguous ranges of at least one layer each, in the order of the network: of all cuts that `fits` allows (empty:
/// any), those whose longest range takes least, and of these the most even one. The first has the embeddings beside
/// its layers, the last one the head. Empty where there is none: fewer layers than ranges, or nothing fits.
std::vector<spec::LayerRange> cut_layers(const PartTimes& times, int ranges,
                                         const std::function<bool(int number, const spec::LayerRange&)>& fits = {});

}  // namespace unsloth::planner
