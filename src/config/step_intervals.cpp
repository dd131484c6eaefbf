#include "unsloth/config/step_intervals.h"

#include <algorithm>
#include <cmath>

namespace unsloth::config {
namespace {

int64_t rounded_up(double steps) {
    constexpr double longer_than_any_run = 1e15;
    return static_cast<int64_t>(std::ceil(std::min(steps, longer_than_any_run)));
}

/// `given`: a number of steps, or below 1 a share of the run's.
int64_t steps_of(double given, int64_t total_steps) {
    return rounded_up(given < 1 ? given * static_cast<double>(total_steps) : given);
}

int64_t steps_between(double given, double per_epoch, int64_t total_steps, int64_t epoch_steps) {
    if (per_epoch > 0) return rounded_up(static_cast<double>(epoch_steps) / per_epoch);
    return steps_of(given, total_steps);
}

}  // namespace

StepIntervals step_intervals(const TrainingOptions& training, int64_t total_steps, int64_t epoch_steps) {
    return {steps_between(training.eval_steps, training.evals_per_epoch, total_steps, epoch_steps),
            steps_between(training.save_steps, training.saves_per_epoch, total_steps, epoch_steps),
            steps_of(training.logging_steps, total_steps)};
}

}  // namespace unsloth::config
