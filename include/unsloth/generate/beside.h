// How many tokens of prompts go in beside rows that decode, and wait for the pass.
#pragma once

#include "unsloth/generate/scheduler.h"
#include "unsloth/planner/decoding_time.h"

namespace unsloth::generate {

/// As many as make a whole bucket of rows with those that decode, in a pass that is predicted to take `longest` times
/// as long as without them at most; they go in singly, so that passes are recorded as others are. Where not even
/// `fewest_singly` do (far into a long prompt each would read many keys), `otherwise`, together.
struct BesideBounds {
    double longest = 2.5;
    int64_t most = 256, fewest_singly = 32, otherwise = 128;
};
BesideRule beside_rule(const planner::DecodingTime& time, const BesideBounds& bounds = {});

}  // namespace unsloth::generate
