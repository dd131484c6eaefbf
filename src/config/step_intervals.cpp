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
StepInterval interval_of(double given, double per_epoch, int64_t total_steps, int64_t epoch_steps) {
    if (per_epoch > 0) return {rounded_up(static_cast<double>(epoch_steps) / per_epoch), per_epoch, epoch_steps};
    return {rounded_up(given < 1 ? given * static_cast<double>(total_steps) : given)};
}

}  // namespace

int64_t StepInterval::count(int64_t steps) const {
    if (every <= 0 || steps <= 0) return 0;
    const auto of_epoch = static_cast<double>(epoch_steps);
    if (per_epoch <= 0 || per_epoch >= of_epoch) return steps / every;
    constexpr double rounding = 1e-9;  // of numbers such as 0.1, which are not exact
    return static_cast<int64_t>(static_cast<double>(steps) * per_epoch / of_epoch + rounding);
}

int64_t StepInterval::shortest() const {
    if (per_epoch <= 0) return every;
    return std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(epoch_steps) / per_epoch));
}

int64_t last_step(const TrainingOptions& training, int64_t total_steps) {
    const int64_t stop = interval_of(training.stop_at_step, 0, total_steps, 0).every;
    return stop > 0 ? std::min(stop, total_steps) : total_steps;
}

StepIntervals step_intervals(const TrainingOptions& training, int64_t total_steps, int64_t epoch_steps) {
    return {interval_of(training.eval_steps, training.evals_per_epoch, total_steps, epoch_steps),
            interval_of(training.save_steps, training.saves_per_epoch, total_steps, epoch_steps),
            interval_of(training.logging_steps, 0, total_steps, epoch_steps)};
}

}  // namespace unsloth::config
