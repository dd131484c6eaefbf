// From rewards to advantages: the baseline and the scale of each completion's reward. In double, for groups of equal
// rewards must give exactly 0.
//
// Sources of the formulas: Shao et al., "DeepSeekMath" (GRPO's group mean and deviation); Liu et al., "Understanding
// R1-Zero-Like Training" (no scale); Liu et al., "GDPO" (normalize_then_sum); Ahmadian et al., "Back to Basics" (RLOO,
// leave_one_out).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/config/config.h"

namespace unsloth::reward {

/// What one reward function says of each row; nullopt: the function does not apply to the row.
using Scores = std::vector<std::optional<double>>;

/// Name and value in the order of report; nullopt is undefined and becomes null.
using Metrics = std::vector<std::pair<std::string, std::optional<double>>>;

using AdvantageKind = config::AdvantageBaseline;
using ScaleRewards = config::RewardScale;
using Aggregation = config::RewardAggregation;

struct AdvantageRule {
    int num_generations = 8;      ///< G, rows of a group; 1 in an evaluation
    std::vector<double> weights;  ///< one a function; empty: 1 each
    AdvantageKind kind = AdvantageKind::group_mean;
    // group_mean
    ScaleRewards scale = ScaleRewards::group;
    Aggregation aggregation = Aggregation::sum_then_normalize;  ///< normalize_then_sum ignores `scale`
    // leave_one_out
    bool normalize = false;                         ///< by mean and deviation of the generation batch
    std::optional<std::pair<double, double>> clip;  ///< of the weighted sum
};

/// What the options of section grpo say; `weights` become its weights.
AdvantageRule advantage_rule(const config::GrpoOptions& options, std::vector<double> weights);

/// What grpo.reward_weights says of these rewards, in their order; empty where it is null. usage Error where it has
/// others than these.
std::vector<double> given_weights(const config::GrpoOptions& options, const std::vector<std::string>& names);

struct Advantages {
    std::vector<double> advantages;  ///< [rows]; 0 where undefined
    /// rewards/NAME/mean and /std of each function, reward, reward_std (weighted sums before clipping),
    /// frac_reward_zero_std (share of groups with a deviation of at most 1e-8).
    Metrics metrics;
    int unscored_rows = 0;          ///< rows without any score
    int partial_rows = 0;           ///< rows with some scores but not all: the missing ones count as 0 in the sum
    std::vector<bool> zero_groups;  ///< [groups] whether the group's rewards are equal: no signal
};

/// Advantages of a whole generation batch (all ranks): `scores[k][i]` is function k's score of row i, groups side by
/// side. `kl_penalty` (leave_one_out): what is subtracted from each row's reward, beta Σ (old - ref); empty: nothing.
/// usage Error when weights do not fit the functions or rows are no multiple of G.
Advantages advantages(const AdvantageRule& rule, const std::vector<std::string>& names,
                      const std::vector<Scores>& scores, std::span<const double> kl_penalty = {});

/// Mean, and deviation with n - 1, over what is not null; nullopt where undefined.
struct Moments {
    std::optional<double> mean, deviation;
};
Moments moments(std::span<const std::optional<double>> values);

}  // namespace unsloth::reward
