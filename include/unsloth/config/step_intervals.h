// How often a run evaluates, saves and logs, once its length is known.
#pragma once

#include <cstdint>

#include "unsloth/config/config.h"

namespace unsloth::config {

/// In steps; 0: not by steps.
struct StepIntervals {
    int64_t eval = 0, save = 0, log = 1;

    /// Whether `step`, from 1, is one of an interval's.
    static bool falls_on(int64_t every, int64_t step) { return every > 0 && step % every == 0; }
};

/// What the options mean for a run of `total_steps`, whose epochs have `epoch_steps` each. Shares of the run are
/// rounded up, as in transformers, and so is an epoch's part. A run without steps has no shares: 0.
StepIntervals step_intervals(const TrainingOptions& training, int64_t total_steps, int64_t epoch_steps);

/// Whether training.eval_steps or evals_per_epoch asks for evaluations during the run.
inline bool evaluates_between_steps(const TrainingOptions& training) {
    return training.eval_steps > 0 || training.evals_per_epoch > 0;
}

}  // namespace unsloth::config
