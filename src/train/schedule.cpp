#include "unsloth/train/schedule.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <string>
#include <string_view>
#include <vector>

#include "unsloth/core/error.h"

namespace unsloth::train {
namespace {

constexpr const char* name_of(config::Schedule schedule) {
    switch (schedule) {
        case config::Schedule::linear:
            return "linear";
        case config::Schedule::cosine:
            return "cosine";
        case config::Schedule::cosine_with_restarts:
            return "cosine_with_restarts";
        case config::Schedule::polynomial:
            return "polynomial";
        case config::Schedule::constant:
            return "constant";
        case config::Schedule::constant_with_warmup:
            return "constant_with_warmup";
        case config::Schedule::inverse_sqrt:
            return "inverse_sqrt";
        case config::Schedule::reduce_lr_on_plateau:
            return "reduce_lr_on_plateau";
        case config::Schedule::cosine_with_min_lr:
            return "cosine_with_min_lr";
        case config::Schedule::cosine_warmup_with_min_lr:
            return "cosine_warmup_with_min_lr";
        case config::Schedule::warmup_stable_decay:
            return "warmup_stable_decay";
    }
    return "?";
}

/// training.lr_scheduler_kwargs, taken one by one; what is left in the end is unknown to the schedule.
class Arguments {
  public:
    explicit Arguments(const config::TrainingOptions& training)
        : schedule_(name_of(training.lr_scheduler_type)), pairs_(training.lr_scheduler_kwargs) {}

    std::optional<double> number(const char* key) {
        const std::optional<std::string> text = take(key);
        if (!text) return std::nullopt;
        double value = 0;
        const char* end = text->data() + text->size();
        const auto [stop, problem] = std::from_chars(text->data(), end, value);
        if (problem != std::errc() || stop != end || !std::isfinite(value)) refuse(key, *text, "a number");
        return value;
    }

    /// A whole number >= 0; "100.0" is one too.
    std::optional<int64_t> count(const char* key) {
        const std::optional<double> value = number(key);
        if (!value) return std::nullopt;
        if (*value < 0 || *value != std::floor(*value) || *value > 9e15)
            refuse(key, cat(*value), "a whole number from 0");
        return static_cast<int64_t>(*value);
    }

    /// A number within [lowest, highest].
    std::optional<double> number_within(const char* key, double lowest, double highest) {
        const std::optional<double> value = number(key);
        if (value && (*value < lowest || *value > highest))
            refuse(key, cat(*value), cat("a number from ", lowest, " to ", highest));
        return value;
    }

    /// The index of the word given among `words`.
    std::optional<std::size_t> word(const char* key, const std::vector<std::string_view>& words) {
        const std::optional<std::string> text = take(key);
        if (!text) return std::nullopt;
        const auto found = std::find(words.begin(), words.end(), *text);
        if (found == words.end()) {
            std::string choices;
            for (const std::string_view choice : words) choices += cat(choices.empty() ? "" : " | ", choice);
            refuse(key, *text, choices);
        }
        return static_cast<std::size_t>(found - words.begin());
    }

    [[noreturn]] void refuse(const char* key, const std::string& found, const std::string& expected) const {
        throw usage_error(
            cat("training.lr_scheduler_kwargs: ", key, " of ", schedule_, " is ", found, ", expected ", expected));
    }

    /// Usage error for arguments that nobody asked for.
    void finish() const {
        if (pairs_.empty()) return;
        std::string known;
        for (const std::string& key : asked_) known += cat(known.empty() ? "" : ", ", key);
        throw usage_error(
            cat("training.lr_scheduler_kwargs: ", schedule_, " has no argument \"", pairs_.front().first, "\""),
            known.empty() ? "It takes none." : cat("It takes: ", known, "."));
    }

  private:
    /// The value of `key`, without quotes; none if absent or null.
    std::optional<std::string> take(const char* key) {
        asked_.emplace_back(key);
        const auto found =
            std::find_if(pairs_.begin(), pairs_.end(), [&](const auto& pair) { return pair.first == key; });
        if (found == pairs_.end()) return std::nullopt;
        std::string text = found->second;
        pairs_.erase(found);
        if (text == "null") return std::nullopt;
        if (text.size() >= 2 && text.front() == '"' && text.back() == '"') text = text.substr(1, text.size() - 2);
        return text;
    }

    std::string schedule_;
    std::vector<std::pair<std::string, std::string>> pairs_;
    std::vector<std::string> asked_;
};

void read_min_lr(Arguments& arguments, ScheduleOptions& options) {
    const std::optional<double> absolute = arguments.number_within("min_lr", 0, 1e9);
    const std::optional<double> rate = arguments.number_within("min_lr_rate", 0, 1e9);
    if (absolute.has_value() == rate.has_value())
        throw usage_error(
            cat("training.lr_scheduler_kwargs: ", absolute ? "both" : "neither", " of min_lr and min_lr_rate given"),
            "Give exactly one of the two: an absolute rate, or a share of learning_rate.");
    if (absolute && !(options.learning_rate > 0)) throw usage_error("training: min_lr needs a learning_rate above 0");
    options.min_lr_rate = absolute ? *absolute / options.learning_rate : *rate;
}

void read_polynomial(Arguments& arguments, ScheduleOptions& options) {
    options.power = arguments.number("power").value_or(options.power);
    options.lr_end = arguments.number("lr_end").value_or(options.lr_end);
    if (!(options.learning_rate > options.lr_end))
        throw usage_error(cat("training.lr_scheduler_kwargs: lr_end of polynomial is ", options.lr_end,
                              ", expected less than learning_rate (", options.learning_rate, ")"));
}

void read_inverse_sqrt(Arguments& arguments, ScheduleOptions& options) {
    const double usual = options.warmup_steps > 0 ? static_cast<double>(options.warmup_steps) : 10000.0;
    options.timescale = arguments.number("timescale").value_or(usual);
    if (!(options.timescale > 0)) arguments.refuse("timescale", cat(options.timescale), "a number above 0");
}

void read_stable_decay(Arguments& arguments, ScheduleOptions& options) {
    const std::vector<std::string_view> shapes = {"linear", "cosine", "1-sqrt"};
    const std::optional<int64_t> decay = arguments.count("num_decay_steps");
    if (!decay)
        throw usage_error("training.lr_scheduler_kwargs: warmup_stable_decay needs num_decay_steps",
                          "For example \"lr_scheduler_kwargs\": {\"num_decay_steps\": 100}.");
    options.decay_steps = *decay;
    const int64_t rest = options.total_steps - options.warmup_steps - options.decay_steps;
    options.stable_steps = arguments.count("num_stable_steps").value_or(rest);
    options.min_lr_ratio = arguments.number_within("min_lr_ratio", 0, 1e9).value_or(0);
    options.num_cycles = arguments.number("num_cycles").value_or(0.5);
    options.warmup_shape = static_cast<ScheduleShape>(arguments.word("warmup_type", shapes).value_or(0));
    options.decay_shape = static_cast<ScheduleShape>(arguments.word("decay_type", shapes).value_or(1));
}

void read_plateau(Arguments& arguments, ScheduleOptions::Plateau& plateau) {
    plateau.lower_is_better = arguments.word("mode", {"min", "max"}).value_or(0) == 0;
    plateau.factor = arguments.number_within("factor", 0, 1).value_or(plateau.factor);
    if (plateau.factor >= 1) arguments.refuse("factor", cat(plateau.factor), "a number below 1");
    plateau.patience = arguments.count("patience").value_or(plateau.patience);
    plateau.threshold = arguments.number("threshold").value_or(plateau.threshold);
    plateau.relative_threshold = arguments.word("threshold_mode", {"rel", "abs"}).value_or(0) == 0;
    plateau.cooldown = arguments.count("cooldown").value_or(plateau.cooldown);
    plateau.min_lr = arguments.number_within("min_lr", 0, 1e9).value_or(plateau.min_lr);
    plateau.eps = arguments.number_within("eps", 0, 1e9).value_or(plateau.eps);
}

// ---- the courses: t is the step's index, as a double ----

double ratio(double part, double whole) {
    return part / std::max(1.0, whole);
}

double half_cosine(double cycles, double progress) {
    return 0.5 * (1.0 + std::cos(std::numbers::pi * cycles * 2.0 * progress));
}

double progress_after_warmup(const ScheduleOptions& o, double t) {
    return ratio(t - static_cast<double>(o.warmup_steps), static_cast<double>(o.total_steps - o.warmup_steps));
}

double cosine_with_restarts(const ScheduleOptions& o, double t) {
    const double progress = progress_after_warmup(o, t);
    if (progress >= 1.0) return 0.0;
    return std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * std::fmod(o.num_cycles * progress, 1.0))));
}

double polynomial(const ScheduleOptions& o, double t) {
    const auto decay_steps = static_cast<double>(o.total_steps - o.warmup_steps);
    if (t > static_cast<double>(o.total_steps) || decay_steps <= 0) return o.lr_end / o.learning_rate;
    const double remaining = 1 - (t - static_cast<double>(o.warmup_steps)) / decay_steps;
    return ((o.learning_rate - o.lr_end) * std::pow(remaining, o.power) + o.lr_end) / o.learning_rate;
}

/// Unlike the others its warm-up ends at 1 (not one step later) and the cosine is a step ahead.
double cosine_warmup_with_min_lr(const ScheduleOptions& o, double t) {
    const auto warmup = static_cast<double>(o.warmup_steps);
    if (t < warmup) {
        if (!o.warmup_lr_rate) return ratio(t + 1.0, warmup);
        return *o.warmup_lr_rate + (1.0 - *o.warmup_lr_rate) * ratio(t, warmup - 1.0);
    }
    const double progress = ratio(t - warmup + 1.0, static_cast<double>(o.total_steps) - warmup);
    return std::max(0.0, half_cosine(o.num_cycles, progress) * (1 - o.min_lr_rate) + o.min_lr_rate);
}

double rise(ScheduleShape shape, double progress) {
    switch (shape) {
        case ScheduleShape::linear:
            return progress;
        case ScheduleShape::cosine:
            return 0.5 * (1.0 - std::cos(std::numbers::pi * progress));
        case ScheduleShape::one_minus_sqrt:
            return 1.0 - std::sqrt(1.0 - progress);
    }
    return 0;
}

double fall(ScheduleShape shape, double cycles, double progress) {
    switch (shape) {
        case ScheduleShape::linear:
            return 1.0 - progress;
        case ScheduleShape::cosine:
            return half_cosine(cycles, progress);
        case ScheduleShape::one_minus_sqrt:
            return 1.0 - std::sqrt(progress);
    }
    return 0;
}

double warmup_stable_decay(const ScheduleOptions& o, double t) {
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

int64_t warmup_steps_of(const config::TrainingOptions& training, int64_t total_steps) {
    if (training.warmup_steps > 0) return training.warmup_steps;
    return static_cast<int64_t>(std::ceil(static_cast<double>(total_steps) * training.warmup_ratio));
}

ScheduleOptions schedule_options(const config::TrainingOptions& training, int64_t total_steps) {
    ScheduleOptions options;
    options.learning_rate = training.learning_rate.value();
    options.total_steps = total_steps;
    options.warmup_steps = warmup_steps_of(training, total_steps);
    Arguments arguments(training);
    switch (training.lr_scheduler_type) {
        case config::Schedule::linear:
        case config::Schedule::constant:
        case config::Schedule::constant_with_warmup:
            break;
        case config::Schedule::cosine:
            options.num_cycles = arguments.number("num_cycles").value_or(0.5);
            break;
        case config::Schedule::cosine_with_restarts:
            options.num_cycles = static_cast<double>(arguments.count("num_cycles").value_or(1));
            break;
        case config::Schedule::polynomial:
            read_polynomial(arguments, options);
            break;
        case config::Schedule::inverse_sqrt:
            read_inverse_sqrt(arguments, options);
            break;
        case config::Schedule::cosine_warmup_with_min_lr:
            options.warmup_lr_rate = arguments.number_within("warmup_lr_rate", 0, 1);
            [[fallthrough]];
        case config::Schedule::cosine_with_min_lr:
            options.num_cycles = arguments.number("num_cycles").value_or(0.5);
            read_min_lr(arguments, options);
            break;
        case config::Schedule::warmup_stable_decay:
            read_stable_decay(arguments, options);
            break;
        case config::Schedule::reduce_lr_on_plateau:
            read_plateau(arguments, options.plateau);
            break;
    }
    arguments.finish();
    return options;
}

double schedule_multiplier(config::Schedule schedule, const ScheduleOptions& o, int64_t step) {
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

PlateauSchedule::PlateauSchedule(const ScheduleOptions& options) : options_(options.plateau) {
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
