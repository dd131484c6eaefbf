#include "unsloth/train/run_record.h"

#include <cmath>

namespace unsloth::train {

void TimeLeft::stepped(double seconds, int64_t tokens) {
    smoothed_seconds_ = 0.9 * smoothed_seconds_ + 0.1 * seconds;
    weight_ = 0.9 * weight_ + 0.1;
    seconds_ += seconds;
    tokens_ += static_cast<double>(tokens);
}

double TimeLeft::after(int64_t step) const {
    const int64_t total = plan_.total_steps;
    // From `step` on; what falls on the last step comes once, at the end.
    const auto times = [&](const config::StepInterval& steps) {
        return steps.count(total - 1) - steps.count(step - 1);
    };
    const double training = weight_ > 0 ? smoothed_seconds_ / weight_ * static_cast<double>(total - step) : 0;
    const double guess = tokens_ > 0 ? 0.5 * static_cast<double>(plan_.eval_tokens) * seconds_ / tokens_ : 0;
    const auto evaluations = static_cast<double>(plan_.eval_tokens > 0 ? times(plan_.eval) + 1 : 0);
    const double by_time = plan_.save_minutes > 0 ? training / (60 * plan_.save_minutes) : 0;
    const double saves = static_cast<double>(times(plan_.save) + 1) + by_time;
    return training + evaluations * eval_seconds_.value_or(guess) + saves * save_seconds_;
}

}  // namespace unsloth::train
