// How long the ranks that share a step take to exchange what they need of each other: predicted from the bytes and the
// card's rate between GPUs, in ms; and what the exchange takes of their memory.
#pragma once

#include <cstdint>
#include <vector>

#include "unsloth/planner/step_time.h"

namespace unsloth::planner {

/// Of a layer's passes for one micro-batch.
struct LayerExchange {
    double forward = 0, backward = 0;  ///< for which products wait, or which take as long from them
    double copied = 0;                 ///< of each pass, by the copy engines during computation
};
LayerExchange layer_exchange(const Card& card, const StepWork& work, const spec::LayerPlan& plan, int64_t in_flight);

/// Around lm_head and the loss of a micro-batch.
double head_exchange_ms(const Card& card, const StepWork& work);

/// Once a step: sums of gradients, and values from the ranks that updated them.
double step_exchange_ms(const Card& card, const StepWork& work);

/// What NCCL takes of a GPU for communicators with `ranks` ranks on its machine, at most: no allocator sees it.
int64_t communicator_bytes(const Card& card, const std::vector<int>& ranks);

/// A micro-batch's residual stream to the next stage of a pipeline.
double border_ms(const Card& card, const StepWork& work);

}  // namespace unsloth::planner
