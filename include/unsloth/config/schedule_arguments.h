// The arguments of the learning-rate schedules: transformers' names and defaults (get_scheduler).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/config/config.h"

namespace unsloth::config {

/// How warmup_stable_decay rises and falls.
enum class ScheduleShape : uint8_t { linear, cosine, one_minus_sqrt };

/// The arguments of a schedule, parsed and checked; made by `schedule_options`.
struct ScheduleOptions {
    double learning_rate = 0;  ///< the base: the rate of a step is learning_rate * multiplier
    int64_t total_steps = 0;
    int64_t warmup_steps = 0;
    double num_cycles = 0.5;               ///< cosine family (cosine_with_restarts: a whole number, 1)
    double power = 1.0;                    ///< polynomial
    double lr_end = 1e-7;                  ///< polynomial
    double timescale = 10000;              ///< inverse_sqrt
    double min_lr_rate = 0;                ///< cosine_with_min_lr, cosine_warmup_with_min_lr
    std::optional<double> warmup_lr_rate;  ///< cosine_warmup_with_min_lr: share of the base at step 0
    int64_t stable_steps = 0;              ///< warmup_stable_decay
    int64_t decay_steps = 0;               ///< warmup_stable_decay
    double min_lr_ratio = 0;               ///< warmup_stable_decay
    ScheduleShape warmup_shape = ScheduleShape::linear, decay_shape = ScheduleShape::cosine;

    /// reduce_lr_on_plateau, names and defaults of torch.optim.lr_scheduler.ReduceLROnPlateau.
    struct Plateau {
        bool lower_is_better = true;  ///< mode: min | max
        double factor = 0.1;
        int64_t patience = 10;
        double threshold = 1e-4;
        bool relative_threshold = true;  ///< threshold_mode: rel | abs
        int64_t cooldown = 0;
        double min_lr = 0;
        double eps = 1e-8;
    } plateau;
};

/// Steps of warm-up in a run of `total_steps`: warmup_steps when above 0, else ceil(total_steps *
/// warmup_ratio).
int64_t warmup_steps_of(const TrainingOptions& training, int64_t total_steps);

/// What training.lr_scheduler_type may be.
const std::vector<std::pair<std::string, Schedule>>& schedule_names();

/// Reads the schedule's arguments from training.lr_scheduler_kwargs. Usage Error, naming the key, for an
/// argument that the schedule does not have, a value that is not of its kind, and combinations that
/// transformers refuses.
ScheduleOptions schedule_options(const TrainingOptions& training, int64_t total_steps);

}  // namespace unsloth::config
