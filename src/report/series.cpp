#include "unsloth/report/series.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace unsloth::report {

Points points_of(const Run& run, double StepRow::* field) {
    Points points;
    for (const StepRow& row : run.steps)
        if (std::isfinite(row.*field)) points.emplace_back(static_cast<double>(row.step), row.*field);
    return points;
}

Points eval_points(const Run& run) {
    Points points;
    for (const EvalRow& row : run.evals)
        if (std::isfinite(row.loss)) points.emplace_back(static_cast<double>(row.step), row.loss);
    return points;
}

std::pair<std::string, double> judged_by(const EvalRow& row) {
    if (const auto reward = row.more.find("reward"); reward != row.more.end()) return *reward;
    return {"loss", row.loss};
}

Points thinned(const Points& points, std::size_t most) {
    if (points.size() <= most) return points;
    const std::size_t stretches = std::max<std::size_t>(most / 2, 1);
    Points kept;
    for (std::size_t i = 0; i < stretches; ++i) {
        const auto begin = points.begin() + static_cast<std::ptrdiff_t>(points.size() * i / stretches);
        const auto end = points.begin() + static_cast<std::ptrdiff_t>(points.size() * (i + 1) / stretches);
        if (begin == end) continue;
        const auto by_value = [](const auto& a, const auto& b) { return a.second < b.second; };
        auto [least, greatest] = std::minmax_element(begin, end, by_value);
        if (least > greatest) std::swap(least, greatest);
        kept.push_back(*least);
        if (least != greatest) kept.push_back(*greatest);
    }
    return kept;
}

Points smoothed(const Points& points, int windows) {
    const double span = std::max(1.0, static_cast<double>(points.size()) / windows);
    const double keep = 1 - 1 / span;
    Points result;
    constexpr double greatest = std::numeric_limits<double>::max();
    long double sum = 0;  // of many values near it
    double weight = 0;
    for (const auto& [step, value] : points) {
        sum = keep * sum + value;
        weight = keep * weight + 1;
        result.emplace_back(step, static_cast<double>(std::clamp<long double>(sum / weight, -greatest, greatest)));
    }
    return result;
}

void Axis::include(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value), high = std::max(high, value);
}

void Axis::widen(double share) {
    constexpr double narrowest = 1e-5, least = 1e-300, most = std::numeric_limits<double>::max();
    const double half = high / 2 - low / 2,
                 size = std::max(std::abs(low), std::abs(high));  // a difference may overflow
    const double around = size < least ? 1 : half < narrowest * size ? 0.1 * size : 2 * share * half;
    low = low >= 0 ? std::max(0.0, low - around) : std::max(low - around, -most);
    high = std::min(high + around, most);
}

double Axis::share_of(double value) const {
    return (value / 2 - low / 2) / (high / 2 - low / 2);
}

std::vector<double> ticks(const Axis& axis, int count) {
    constexpr double least = std::numeric_limits<double>::min(), most = 1e308;
    const double raw = axis.high / count - axis.low / count;
    if (!(raw >= least && raw < most)) return {axis.low};  // no step divides it
    const double magnitude = std::pow(10, std::floor(std::log10(raw)));
    double step = 10 * magnitude;
    for (const double factor : {1.0, 2.0, 5.0})
        if (raw <= factor * magnitude) {
            step = factor * magnitude;
            break;
        }
    constexpr double slack = 1e-9;
    const double first = std::ceil(axis.low / step - slack), last = std::floor(axis.high / step + slack);
    std::vector<double> values;
    for (int i = 0; i <= count && first + i <= last; ++i) {
        const double value = std::clamp((first + i) * step + 0.0, axis.low, axis.high);  // -0 + 0 is 0
        if (values.empty() || value > values.back()) values.push_back(value);
    }
    return values.empty() ? std::vector<double>{axis.low} : values;
}

std::string short_number(double value) {
    char text[32];
    const double size = std::abs(value);
    if (size >= 1e12) {
        std::snprintf(text, sizeof text, "%.3g", value);
    } else if (size >= 1e9) {
        std::snprintf(text, sizeof text, "%.3gG", value / 1e9);
    } else if (size >= 1e6) {
        std::snprintf(text, sizeof text, "%.3gM", value / 1e6);
    } else if (size >= 1e4) {
        std::snprintf(text, sizeof text, "%.3gk", value / 1e3);
    } else {
        std::snprintf(text, sizeof text, "%.4g", value);
    }
    return text;
}

const std::vector<Curve>& curves() {
    static const std::vector<Curve> all = {{"loss", "Loss", "", &StepRow::loss},
                                           {"learning_rate", "Learning rate", "", &StepRow::learning_rate},
                                           {"grad_norm", "Gradient norm, before clipping", "", &StepRow::grad_norm},
                                           {"tokens_per_second", "Tokens per second", "", &StepRow::tokens_per_second},
                                           {"mfu", "Share of the GPU's rate (MFU)", "", &StepRow::mfu},
                                           {"step_ms", "Step time", "ms", &StepRow::step_ms},
                                           {"memory_gib", "Memory", "GiB", &StepRow::memory_gib},
                                           {"router_load_max", "Fullest expert's tokens, over the mean", "", nullptr},
                                           {"dead_experts", "Experts without tokens, of all layers", "", nullptr},
                                           {"rewards/margins", "Reward margin", "", nullptr},
                                           {"rewards/accuracies", "Reward accuracy", "", nullptr},
                                           {"kl", "Divergence from the reference", "", nullptr},
                                           {"reward", "Reward", "", nullptr},
                                           {"reward_std", "Standard deviation of the reward", "", nullptr},
                                           {"frac_reward_zero_std", "Share of groups with equal rewards", "", nullptr},
                                           {"entropy", "Entropy of the policy", "", nullptr},
                                           {"kl_sampler_trainer", "Divergence of sampler and trainer", "", nullptr},
                                           {"completions/mean_length", "Tokens of a completion", "", nullptr},
                                           {"completions/clipped_ratio", "Share of truncated completions", "", nullptr},
                                           {"divergence", "Divergence from the teacher", "", nullptr},
                                           {"nll_loss", "Cross-entropy of the labels", "", nullptr},
                                           {"token_accuracy", "Token accuracy", "", nullptr},
                                           {"exact_match", "Exact match", "", nullptr},
                                           {"regex", "Regular expression found", "", nullptr}};
    return all;
}

namespace {

template <class Row>
Points points_of_more(const std::vector<Row>& rows, const char* key) {
    Points points;
    for (const Row& row : rows)
        if (const auto found = row.more.find(key); found != row.more.end())
            points.emplace_back(static_cast<double>(row.step), found->second);
    return points;
}

}  // namespace

Points points_of(const Run& run, const Curve& curve) {
    return curve.field != nullptr ? points_of(run, curve.field) : points_of_more(run.steps, curve.key);
}

Points eval_points(const Run& run, const Curve& curve) {
    return curve.field == &StepRow::loss ? eval_points(run) : points_of_more(run.evals, curve.key);
}

std::string memory_text(double gib) {
    if (!std::isfinite(gib)) return "-";
    return std::abs(gib) < 1 ? short_number(gib * 1024) + " MiB" : short_number(gib) + " GiB";
}

}  // namespace unsloth::report
