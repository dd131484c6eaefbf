#include "unsloth/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "unsloth/core/error.h"

namespace unsloth::train {
namespace {

// ---- the courses: t is the step's index, as a double ----

double ratio(double part, double whole) {
    return part / std::max(1.0, whole);
}

double half_cosine(double cycles, double progress) {
    return 0.5 * (1.0 + std::cos(std::numbers::pi * cycles * 2.0 * progress));
}

double progress_after_warmup(const config::ScheduleOptions& o, double t) {
    return ratio(t - static_cast<double>(o.warmup_steps), static_cast<double>(o.total_steps - o.warmup_steps));
}

double cosine_with_restarts(const config::ScheduleOptions& o, double t) {
    const double progress = progress_after_warmup(o, t);
    if (progress >= 1.0) return 0.0;
    return std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * std::fmod(o.num_cycles * progress, 1.0))));
}

double polynomial(const config::ScheduleOptions& o, double t) {
    const auto decay_steps = static_cast<double>(o.total_steps - o.warmup_steps);
    if (t > static_cast<double>(o.total_steps) || decay_steps <= 0) return o.lr_end / o.learning_rate;
    const double remaining = 1 - (t - static_cast<double>(o.warmup_steps)) / decay_steps;
    return ((o.learning_rate - o.lr_end) * std::pow(remaining, o.power) + o.lr_end) / o.learning_rate;
}

/// Unlike the others its warm-up ends at 1 (not one step later) and the cosine is a step ahead.
double cosine_warmup_with_min_lr(const config::ScheduleOptions& o, double t) {
    const auto warmup = static_cast<double>(o.warmup_steps);
    if (t < warmup) {
        if (!o.warmup_lr_rate) return ratio(t + 1.0, warmup);
        return *o.warmup_lr_rate + (1.0 - *o.warmup_lr_rate) * ratio(t, warmup - 1.0);
    }
    const double progress = ratio(t - warmup + 1.0, static_cast<double>(o.total_steps) - warmup);
    return std::max(0.0, half_cosine(o.num_cycles, progress) * (1 - o.min_lr_rate) + o.min_lr_rate);
}

double rise(config::ScheduleShape shape, double progress) {
    switch (shape) {
        case config::ScheduleShape::linear:
            return progress;
        case config::ScheduleShape::cosine:
            return 0.5 * (1.0 - std::cos(std::numbers::pi * progress));
        case config::ScheduleShape::one_minus_sqrt:
            return 1.0 - std::sqrt(1.0 - progress);
    }
    return 0;
}

double fall(config::ScheduleShape shape, double cycles, double progress) {
    switch (shape) {
        case config::ScheduleShape::linear:
            return 1.0 - progress;
        case config::ScheduleShape::cosine:
            return half_cosine(cycles, progress);
        case config::ScheduleShape::one_minus_sqrt:
            return 1.0 - std::sqrt(progress);
    }
    return 0;
}

double warmup_stable_decay(const config::ScheduleOptions& o, double t) {
    const auto warmup = static_cast<double>(o.warmup_steps), stable = static_cast<double>(o.stable_steps);
    const auto decay = static_cast<double>(o.decay_steps);
    double factor = 0;
    if (t < warmup) {
        factor = rise(o.warmup_shape, ratio(t, warmup));
    } else if (t < warmup + stable) {
        return 1.0;
    } else if (t < warmup + stable + decay) {
        factor = fall(o.decay_shape, o.num_cycles, ratio(t - warmup - stable, decay));
    }
    return std::max(0.0, factor * (1.0 - o.min_lr_ratio) + o.min_lr_ratio);
}

}  // namespace

double schedule_multiplier(config::Schedule schedule, const config::ScheduleOptions& o, int64_t step) {
    const auto t = static_cast<double>(step);
    const auto warmup = static_cast<double>(o.warmup_steps);
    switch (schedule) {  // those with a warm-up of their own, or none
        case config::Schedule::constant:
        case config::Schedule::reduce_lr_on_plateau:
            return 1.0;
        case config::Schedule::cosine_warmup_with_min_lr:
            return cosine_warmup_with_min_lr(o, t);
        case config::Schedule::warmup_stable_decay:
            return warmup_stable_decay(o, t);
        default:
            break;
    }
    if (t < warmup) return ratio(t, warmup);
    switch (schedule) {
        case config::Schedule::linear:
            return std::max(0.0,
                            ratio(static_cast<double>(o.total_steps) - t, static_cast<double>(o.total_steps) - warmup));
        case config::Schedule::cosine:
            return std::max(0.0, half_cosine(o.num_cycles, progress_after_warmup(o, t)));
        case config::Schedule::cosine_with_restarts:
            return cosine_with_restarts(o, t);
        case config::Schedule::polynomial:
            return polynomial(o, t);
        case config::Schedule::inverse_sqrt:
            return 1.0 / std::sqrt((t + o.timescale - warmup) / o.timescale);
        case config::Schedule::cosine_with_min_lr:
            return std::max(
                0.0, half_cosine(o.num_cycles, progress_after_warmup(o, t)) * (1 - o.min_lr_rate) + o.min_lr_rate);
        default:
            return 1.0;  // constant_with_warmup
    }
}

PlateauSchedule::PlateauSchedule(const config::ScheduleOptions& options) : options_(options.plateau) {
    state_.learning_rate = options.learning_rate;
}

bool PlateauSchedule::improves(double metric) const {
    if (std::isnan(metric)) return false;
    if (!state_.has_best) return true;
    const double sign = options_.lower_is_better ? -1.0 : 1.0;
    const double bar = options_.relative_threshold ? state_.best * (1.0 + sign * options_.threshold)
                                                   : state_.best + sign * options_.threshold;
    return options_.lower_is_better ? metric < bar : metric > bar;
}

void PlateauSchedule::observe(double metric) {
    if (improves(metric)) {
        state_.best = metric;
        state_.has_best = true;
        state_.bad_evaluations = 0;
    } else {
        ++state_.bad_evaluations;
    }
    if (state_.cooldown_left > 0) {  // evaluations during the cooldown do not count
        --state_.cooldown_left;
        state_.bad_evaluations = 0;
    }
    if (state_.bad_evaluations <= options_.patience) return;
    const double lower = std::max(state_.learning_rate * options_.factor, options_.min_lr);
    if (state_.learning_rate - lower > options_.eps) state_.learning_rate = lower;
    state_.cooldown_left = options_.cooldown;
    state_.bad_evaluations = 0;
}

}  // namespace unsloth::train
