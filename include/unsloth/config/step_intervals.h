// How often a run evaluates, saves and logs, once its length is known.
#pragma once

#include <cstdint>

#include "unsloth/config/config.h"

namespace unsloth::config {

/// Which steps of a run, counted from 1, are chosen: each `every`-th, or `per_epoch` of each epoch. The i-th of N in an
/// epoch of S steps is i S / N, rounded up: N where S is at least N, at distances that differ by one, the last at the
/// epoch's end.
struct StepInterval {
    int64_t every = 0;        ///< the longest distance; 0: none is chosen
    double per_epoch = 0;     ///< 0: each `every`-th
    int64_t epoch_steps = 0;  ///< with `per_epoch`

    bool falls_on(int64_t step) const { return count(step) > count(step - 1); }
    /// How many of the first `steps` are chosen.
    int64_t count(int64_t steps) const;
    int64_t shortest() const;  ///< distance
};

struct StepIntervals {
    StepInterval eval, save, log;
};

/// What the options mean for a run of `total_steps`, whose epochs have `epoch_steps` each. Shares of the run are
/// rounded up, as in transformers. A run without steps has no shares: 0.
StepIntervals step_intervals(const TrainingOptions& training, int64_t total_steps, int64_t epoch_steps);

/// Where a run of `total_steps` stops: there, or at training.stop_at_step, whichever is earlier.
int64_t last_step(const TrainingOptions& training, int64_t total_steps);

/// Whether training.eval_steps or evals_per_epoch asks for evaluations during the run.
inline bool evaluates_between_steps(const TrainingOptions& training) {
    return training.eval_steps > 0 || training.evals_per_epoch > 0;
}

}  // namespace unsloth::config
