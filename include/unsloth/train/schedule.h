// Learning-rate schedules: transformers' formulas (get_scheduler), in fp64.
#pragma once

#include <cstdint>
#include "unsloth/config/schedule_arguments.h"
#include "unsloth/formats/run_state.h"

namespace unsloth::train {

/// The factor on the base learning rate in effect at the optimizer step with this index, counted from 0.
/// reduce_lr_on_plateau: 1 (its course depends on evaluations: see PlateauSchedule). step >= 0.
double schedule_multiplier(config::Schedule schedule, const config::ScheduleOptions& options, int64_t step);

/// reduce_lr_on_plateau: the rate falls by `factor` when the metric has not improved for more than `patience`
/// evaluations.
class PlateauSchedule {
  public:
    /// All that a checkpoint must keep.
    using State = formats::PlateauProgress;

    explicit PlateauSchedule(const config::ScheduleOptions& options);
    /// One evaluation's metric (eval_loss); a NaN counts as no improvement.
    void observe(double metric);
    double learning_rate() const { return state_.learning_rate; }
    const State& state() const { return state_; }
    void restore(const State& state) { state_ = state; }

  private:
    bool improves(double metric) const;

    config::ScheduleOptions::Plateau options_;
    State state_;
};

}  // namespace unsloth::train
