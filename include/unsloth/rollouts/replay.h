// A file of rollouts: groups with completions and rewards, one JSON object a line.
#pragma once

#include <filesystem>
#include <memory>

#include "unsloth/rollouts/group.h"
#include "unsloth/rollouts/order.h"

namespace unsloth::rollouts {

/// What rows of the file must keep to.
struct ReplayBounds {
    int64_t vocab_size = 0;
    int64_t max_seq_length = 0;  ///< of prompt and completion
};

/// Reads grpo.replay_rollouts whole: {"prompt_ids": […], "completions": [{"ids", "logprobs", "truncated"}, …],
/// "rewards": {NAME: […]}}. A line is a group, in the order of use; lines after the last generation of
/// training.max_steps are not read. input Error with file and line for a line that is wrong and for a file that is too
/// short; usage Error for options that do not fit the file.
std::unique_ptr<GroupSource> open_replay(const config::Config& config, const RolloutOrder& order,
                                         const ReplayBounds& bounds);

}  // namespace unsloth::rollouts
