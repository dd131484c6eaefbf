#include "unsloth/train/rollout_guard.h"

#include <cmath>
#include <limits>

#include "unsloth/core/error.h"

namespace unsloth::train {
namespace {

constexpr int patience = 10;  // steps

double named(const std::vector<std::pair<std::string, double>>& metrics, const char* name) {
    for (const auto& [other, value] : metrics)
        if (other == name) return value;
    return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

std::vector<std::string> RolloutGuard::observe(int64_t step, const std::vector<std::pair<std::string, double>>& metrics,
                                               bool replays) {
    std::vector<std::string> warnings;
    const auto watch = [&](Sign& sign, double value, bool bad, int steps, const auto& text) {
        if (std::isnan(value)) return;  // nothing is known of this step
        sign.steps = bad ? sign.steps + 1 : 0;
        if (sign.steps < steps || sign.warned) return;
        sign.warned = true;
        warnings.push_back(text());
    };
    const double truncated = named(metrics, "completions/clipped_ratio"),
                 equal = named(metrics, "frac_reward_zero_std"), entropy = named(metrics, "entropy"),
                 kl = named(metrics, "kl"), differs = named(metrics, "kl_sampler_trainer");
    if (!replays && differs > highest_divergence)
        throw Error("rollout.sampler-differs", cat("step ", step, ": kl_sampler_trainer is ", differs, ", and ",
                                                   highest_divergence, " is the most that rounding explains"));
    watch(differs_, differs, differs > doubtful_divergence, 1, [&] {
        return cat("step ", step, ": kl_sampler_trainer is ", differs, ". Up to ", doubtful_divergence,
                   " is rounding; grpo.sampler_correction token_truncate corrects for more.");
    });
    watch(truncated_, truncated, truncated > 0.9, patience, [&] {
        return cat("more than 90 % of the completions were truncated in each of the last ", patience,
                   " generation batches: raise grpo.max_completion_length, or reward short completions");
    });
    watch(without_signal_, equal, equal >= 1, patience, [&] {
        return cat("all rewards of each group were equal in the last ", patience,
                   " generation batches, so nothing was learned: check grpo.rewards, or take easier or harder prompts");
    });
    watch(certain_, entropy, entropy < 0.01, patience, [&] {
        return cat("the entropy of tokens was below 0.01 in the last ", patience,
                   " steps: the policy hardly varies any more. Lower training.learning_rate, or set grpo.beta.");
    });
    watch(far_from_reference_, kl, kl > 10, patience, [&] {
        return cat("kl was above 10 in the last ", patience,
                   " steps: the policy is far from its reference. Lower training.learning_rate, or raise grpo.beta.");
    });
    return warnings;
}

}  // namespace unsloth::train
