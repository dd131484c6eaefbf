// Groups that a run samples: prompts of the data, completions of the model as it is, rewards of functions.
#pragma once

#include <memory>

#include "unsloth/rollouts/group.h"
#include "unsloth/rollouts/order.h"
#include "unsloth/session/session.h"

namespace unsloth::rollouts {

/// A signal came while completions were sampled or scored: the generation batch was dropped. Sampled again it is the
/// same.
struct GenerationStopped {
    int signal = 0;
};

/// Reads the prompts and starts the reward functions: input Error for rows that are no prompts, usage Error for rewards
/// that cannot be loaded, with their traceback. generation() throws a GenerationStopped.
std::unique_ptr<GroupSource> open_sampled(const config::Config& config, const RolloutOrder& order,
                                          const session::OpenedModel& opened, int rank, int ranks);

}  // namespace unsloth::rollouts
