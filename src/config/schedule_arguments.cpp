#include "unsloth/config/schedule_arguments.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

#include "unsloth/core/error.h"
#include "unsloth/core/suggest.h"

namespace unsloth::config {
namespace {

std::string name_of(Schedule schedule) {
    for (const auto& [name, value] : schedule_names())
        if (value == schedule) return name;
    return "?";
}

/// training.lr_scheduler_kwargs, taken one by one; what is left in the end is unknown to the schedule.
constexpr double most = 1e9;  // of any argument: what follows from it stays finite

class Arguments {
  public:
    explicit Arguments(const TrainingOptions& training)
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
        throw Error("option.invalid-value", cat("training.lr_scheduler_kwargs: ", key, " of ", schedule_, " is ", found,
                                                ", expected ", expected));
    }

    /// Usage error for arguments that the schedule does not have.
    void finish() const {
        if (pairs_.empty()) return;
        const std::string& unknown = pairs_.front().first;
        std::string known;
        for (const std::string& key : asked_) known += cat(known.empty() ? "" : ", ", key);
        std::string advice = did_you_mean(nearest(unknown, asked_));
        advice += cat(advice.empty() ? "" : " ",
                      known.empty() ? "This schedule takes no arguments." : cat("It takes: ", known, "."));
        throw Error("option.unknown-key",
                    cat("training.lr_scheduler_kwargs: '", unknown, "' is no argument of ", schedule_), advice);
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
    const std::optional<double> absolute = arguments.number_within("min_lr", 0, most);
    const std::optional<double> rate = arguments.number_within("min_lr_rate", 0, most);
    if (absolute.has_value() == rate.has_value())
        throw Error(
            "option.conflict",
            cat("training.lr_scheduler_kwargs: ", absolute ? "both" : "neither", " of min_lr and min_lr_rate given"),
            "Give exactly one of the two: an absolute rate, or a share of learning_rate.");
    if (absolute && !(options.learning_rate > 0))
        throw Error("option.out-of-range", "training: min_lr needs a learning_rate above 0");
    options.min_lr_rate = absolute ? *absolute / options.learning_rate : *rate;
}

void read_polynomial(Arguments& arguments, ScheduleOptions& options) {
    options.lr_end = arguments.number_within("lr_end", 0, most).value_or(options.lr_end);
    options.power = arguments.number_within("power", 0, most).value_or(options.power);
    if (!(options.learning_rate > options.lr_end))
        throw Error("option.out-of-range", cat("training.lr_scheduler_kwargs: lr_end of polynomial is ", options.lr_end,
                                               ", expected less than learning_rate (", options.learning_rate, ")"));
}

void read_inverse_sqrt(Arguments& arguments, ScheduleOptions& options) {
    const double usual = options.warmup_steps > 0 ? static_cast<double>(options.warmup_steps) : 10000.0;
    options.timescale = arguments.number_within("timescale", 1e-3, most).value_or(usual);
}

void read_stable_decay(Arguments& arguments, ScheduleOptions& options) {
    const std::vector<std::string_view> shapes = {"linear", "cosine", "1-sqrt"};
    const std::optional<int64_t> decay = arguments.count("num_decay_steps");
    if (!decay)
        throw Error("option.missing", "training.lr_scheduler_kwargs: warmup_stable_decay needs num_decay_steps",
                    "For example \"lr_scheduler_kwargs\": {\"num_decay_steps\": 100}.");
    options.decay_steps = *decay;
    const int64_t rest = options.total_steps - options.warmup_steps - options.decay_steps;
    options.stable_steps = arguments.count("num_stable_steps").value_or(rest);
    options.min_lr_ratio = arguments.number_within("min_lr_ratio", 0, most).value_or(0);
    options.num_cycles = arguments.number_within("num_cycles", 0, most).value_or(0.5);
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
    plateau.min_lr = arguments.number_within("min_lr", 0, most).value_or(plateau.min_lr);
    plateau.eps = arguments.number_within("eps", 0, most).value_or(plateau.eps);
}

}  // namespace

const std::vector<std::pair<std::string, Schedule>>& schedule_names() {
    static const std::vector<std::pair<std::string, Schedule>> names = {
        {"linear", Schedule::linear},
        {"cosine", Schedule::cosine},
        {"cosine_with_restarts", Schedule::cosine_with_restarts},
        {"polynomial", Schedule::polynomial},
        {"constant", Schedule::constant},
        {"constant_with_warmup", Schedule::constant_with_warmup},
        {"inverse_sqrt", Schedule::inverse_sqrt},
        {"reduce_lr_on_plateau", Schedule::reduce_lr_on_plateau},
        {"cosine_with_min_lr", Schedule::cosine_with_min_lr},
        {"cosine_warmup_with_min_lr", Schedule::cosine_warmup_with_min_lr},
        {"warmup_stable_decay", Schedule::warmup_stable_decay}};
    return names;
}

int64_t warmup_steps_of(const TrainingOptions& training, int64_t total_steps) {
    if (training.warmup_steps > 0) return training.warmup_steps;
    return static_cast<int64_t>(std::ceil(static_cast<double>(total_steps) * training.warmup_ratio));
}

ScheduleOptions schedule_options(const TrainingOptions& training, int64_t total_steps) {
    ScheduleOptions options;
    options.learning_rate = training.learning_rate.value();
    options.total_steps = total_steps;
    options.warmup_steps = warmup_steps_of(training, total_steps);
    Arguments arguments(training);
    switch (training.lr_scheduler_type) {
        case Schedule::linear:
        case Schedule::constant:
        case Schedule::constant_with_warmup:
            break;
        case Schedule::cosine:
            options.num_cycles = arguments.number_within("num_cycles", 0, most).value_or(0.5);
            break;
        case Schedule::cosine_with_restarts:
            options.num_cycles = static_cast<double>(arguments.count("num_cycles").value_or(1));
            break;
        case Schedule::polynomial:
            read_polynomial(arguments, options);
            break;
        case Schedule::inverse_sqrt:
            read_inverse_sqrt(arguments, options);
            break;
        case Schedule::cosine_warmup_with_min_lr:
            options.warmup_lr_rate = arguments.number_within("warmup_lr_rate", 0, 1);
            [[fallthrough]];
        case Schedule::cosine_with_min_lr:
            options.num_cycles = arguments.number_within("num_cycles", 0, most).value_or(0.5);
            read_min_lr(arguments, options);
            break;
        case Schedule::warmup_stable_decay:
            read_stable_decay(arguments, options);
            break;
        case Schedule::reduce_lr_on_plateau:
            read_plateau(arguments, options.plateau);
            break;
    }
    arguments.finish();
    return options;
}

}  // namespace unsloth::config
