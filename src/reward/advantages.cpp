#include "unsloth/reward/advantages.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"

namespace unsloth::reward {
namespace {

constexpr double epsilon = 1e-4;   // added to each deviation that divides, as in TRL
constexpr double zero_std = 1e-8;  // up to here a group's rewards count as equal

using Values = std::span<const std::optional<double>>;

struct Groups {
    std::size_t rows, group;  ///< group: G

    template <class Visit>
    void for_groups(Visit visit) const {
        for (std::size_t first = 0; first < rows; first += group) visit(first);
    }
    Values group_of(const Scores& scores, std::size_t first) const { return Values(scores).subspan(first, group); }
};

/// (value - mean) / scale; nullopt where the value or the mean is.
std::optional<double> normalized(std::optional<double> value, const Moments& of, bool scaled) {
    if (!value || !of.mean || (scaled && !of.deviation)) return std::nullopt;
    return (*value - *of.mean) / (scaled ? *of.deviation + epsilon : 1.0);
}

/// Σ w r over what is not null; null where all is.
Scores weighted_sums(const std::vector<double>& weights, const std::vector<Scores>& scores, std::size_t rows) {
    Scores sums(rows);
    for (std::size_t k = 0; k < scores.size(); ++k) {
        for (std::size_t i = 0; i < rows; ++i)
            if (scores[k][i]) sums[i] = sums[i].value_or(0) + weights[k] * *scores[k][i];
    }
    return sums;
}

Scores group_mean(const AdvantageRule& rule, const Groups& batch, const Scores& sums) {
    const Moments all = moments(sums);
    Scores result(batch.rows);
    batch.for_groups([&](std::size_t first) {
        Moments group = moments(batch.group_of(sums, first));
        if (rule.scale == ScaleRewards::batch) group.deviation = all.deviation;
        for (std::size_t i = first; i < first + batch.group; ++i)
            result[i] = normalized(sums[i], group, rule.scale != ScaleRewards::none);
    });
    return result;
}

Scores normalize_then_sum(const std::vector<double>& weights, const Groups& batch, std::vector<Scores> scores) {
    Scores present(batch.rows);  // rows that have a score, whatever becomes of it
    for (Scores& one : scores) {
        const Scores raw = one;
        batch.for_groups([&](std::size_t first) {
            const Moments group = moments(batch.group_of(raw, first));
            for (std::size_t i = first; i < first + batch.group; ++i) {
                if (raw[i]) present[i] = 0;
                one[i] = normalized(raw[i], group, /*scaled=*/true);
            }
        });
    }
    Scores sums = weighted_sums(weights, scores, batch.rows);
    for (std::size_t i = 0; i < batch.rows; ++i)
        if (!sums[i]) sums[i] = present[i];  // the only scored row of its group counts as 0
    const Moments all = moments(sums);
    for (std::optional<double>& value : sums) value = normalized(value, all, /*scaled=*/true);
    return sums;
}

Scores leave_one_out(const AdvantageRule& rule, const Groups& batch, const Scores& rewards) {
    Scores result(batch.rows);
    batch.for_groups([&](std::size_t first) {
        const Values group = batch.group_of(rewards, first);
        const auto in = std::count_if(group.begin(), group.end(), [](const auto& value) { return value.has_value(); });
        const Moments all = moments(group);
        // The mean of the others, and so R - mean(others) = (R - mean(all)) n / (n - 1).
        if (in < 2) return;
        for (std::size_t i = first; i < first + batch.group; ++i)
            if (rewards[i])
                result[i] = (*rewards[i] - *all.mean) * static_cast<double>(in) / static_cast<double>(in - 1);
    });
    if (!rule.normalize) return result;
    const Moments all = moments(result);  // a row without others is not in
    for (std::optional<double>& value : result) value = normalized(value, all, /*scaled=*/true);
    return result;
}

}  // namespace

AdvantageRule advantage_rule(const config::GrpoOptions& options, std::vector<double> weights) {
    AdvantageRule rule;
    rule.num_generations = static_cast<int>(options.num_generations);
    rule.weights = std::move(weights);
    rule.kind = options.advantage;
    rule.scale = options.scale_rewards;
    rule.aggregation = options.multi_objective_aggregation;
    rule.normalize = options.normalize_advantages;
    if (const auto range = nlohmann::json::parse(options.reward_clip_range); range.is_array())
        rule.clip = {range[0].get<double>(), range[1].get<double>()};
    return rule;
}

std::vector<double> given_weights(const config::GrpoOptions& options, const std::vector<std::string>& names) {
    const auto given = nlohmann::ordered_json::parse(options.reward_weights);
    if (given.is_null()) return {};
    std::vector<double> weights;
    if (given.is_array()) weights = given.get<std::vector<double>>();
    if (given.is_object())
        for (const std::string& name : names) {
            if (!given.contains(name))
                throw Error("option.conflict", cat("grpo.reward_weights has no weight of ", name));
            weights.push_back(given[name].get<double>());
        }
    if (given.size() != names.size())
        throw Error("option.conflict", cat("grpo.reward_weights has ", given.size(), " weights, and there are ",
                                           names.size(), " rewards"));
    return weights;
}

Moments moments(Values values) {
    Moments result;
    double count = 0, sum = 0, squares = 0;
    std::optional<double> first;  // sums of differences to it, so that equal values give themselves and 0
    for (const auto& value : values) {
        if (!value) continue;
        if (!first) first = value;
        sum += *value - *first;
        count += 1;
    }
    if (!first) return result;
    result.mean = *first + sum / count;
    if (count < 2) return result;
    for (const auto& value : values)
        if (value) squares += (*value - *result.mean) * (*value - *result.mean);
    result.deviation = std::sqrt(squares / (count - 1));
    return result;
}

Advantages advantages(const AdvantageRule& rule, const std::vector<std::string>& names,
                      const std::vector<Scores>& scores, std::span<const double> kl_penalty) {
    const std::vector<double> weights = rule.weights.empty() ? std::vector<double>(scores.size(), 1.0) : rule.weights;
    if (weights.size() != scores.size())
        throw Error("option.conflict",
                    cat("reward_weights has ", weights.size(), " values for ", scores.size(), " rewards"),
                    "Give one weight for each reward.");
    UNSLOTH_CHECK(names.size() == scores.size() && !scores.empty(), names.size(), " names, ", scores.size(),
                  " rewards");
    const Groups batch{scores.front().size(), static_cast<std::size_t>(std::max(rule.num_generations, 1))};
    if (batch.rows % batch.group != 0)
        throw Error("option.conflict", cat("a generation batch of ", batch.rows,
                                           " completions is no multiple of num_generations ", batch.group));
    for (const Scores& one : scores) UNSLOTH_CHECK(one.size() == batch.rows, one.size(), " of ", batch.rows, " rows");
    UNSLOTH_CHECK(kl_penalty.empty() || kl_penalty.size() == batch.rows, kl_penalty.size(), " KL values");

    Advantages result;
    for (std::size_t k = 0; k < scores.size(); ++k) {
        const Moments one = moments(scores[k]);
        result.metrics.emplace_back(cat("rewards/", names[k], "/mean"), one.mean);
        result.metrics.emplace_back(cat("rewards/", names[k], "/std"), one.deviation);
    }
    const Scores sums = weighted_sums(weights, scores, batch.rows);
    const Moments all = moments(sums);
    result.metrics.emplace_back("reward", all.mean);
    result.metrics.emplace_back("reward_std", all.deviation);
    for (std::size_t i = 0; i < batch.rows; ++i) {
        const auto missing =
            std::count_if(scores.begin(), scores.end(), [&](const Scores& one) { return !one[i].has_value(); });
        if (missing == static_cast<std::ptrdiff_t>(scores.size()))
            ++result.unscored_rows;
        else if (missing > 0)
            ++result.partial_rows;
    }

    Scores rewards = sums;  // what the groups are compared by
    Scores values;
    if (rule.kind == AdvantageKind::leave_one_out) {
        for (std::size_t i = 0; i < batch.rows; ++i) {
            if (!rewards[i]) continue;
            if (rule.clip) rewards[i] = std::clamp(*rewards[i], rule.clip->first, rule.clip->second);
            if (!kl_penalty.empty()) *rewards[i] -= kl_penalty[i];
        }
        values = leave_one_out(rule, batch, rewards);
    } else if (rule.aggregation == Aggregation::normalize_then_sum) {
        values = normalize_then_sum(weights, batch, scores);
    } else {
        values = group_mean(rule, batch, rewards);
    }
    for (const auto& value : values) result.advantages.push_back(value.value_or(0));

    double zero = 0;
    batch.for_groups([&](std::size_t first) {
        const Moments group = moments(batch.group_of(rewards, first));
        // An evaluation's groups of one row have no deviation, which counts as 0 like TRL's.
        const bool equal = batch.group == 1 || (group.deviation && *group.deviation <= zero_std);
        result.zero_groups.push_back(equal);
        zero += equal ? 1 : 0;
    });
    const auto groups = static_cast<double>(result.zero_groups.size());
    result.metrics.emplace_back("frac_reward_zero_std", groups > 0 ? std::optional(zero / groups) : std::nullopt);
    return result;
}

}  // namespace unsloth::reward
