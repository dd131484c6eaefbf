// What of a plan is in use at each time of a step: for `plan --svg`.
#pragma once

#include "unsloth/model/loader.h"
#include "unsloth/planner/card.h"
#include "unsloth/planner/memory_picture.h"

namespace unsloth::placement {

/// Of one micro-batch's forward and backward pass, a stretch a layer, with the times that the card is predicted to
/// need.
planner::MemoryOverTime memory_over_time(const model::ModelPlan& plan, const planner::Card& card);

}  // namespace unsloth::placement
