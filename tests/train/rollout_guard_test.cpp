#include "unsloth/train/rollout_guard.h"

#include <gtest/gtest.h>

#include <cmath>

#include "common/errors.h"

namespace unsloth::train {
namespace {

using Metrics = std::vector<std::pair<std::string, double>>;

/// What the guard says of these metrics, step after step.
std::vector<std::string> warnings_of(RolloutGuard& guard, const Metrics& metrics, int steps, bool replays = false) {
    std::vector<std::string> all;
    for (int step = 1; step <= steps; ++step)
        for (std::string& warning : guard.observe(step, metrics, replays)) all.push_back(std::move(warning));
    return all;
}

TEST(RolloutGuard, WarnsOnceOfEachSignThatLasts) {
    for (const auto& [name, bad, good] : {std::tuple{"completions/clipped_ratio", 0.95, 0.5},
                                          {"frac_reward_zero_std", 1.0, 0.9},
                                          {"entropy", 0.005, 0.5},
                                          {"kl", 11.0, 1.0}}) {
        SCOPED_TRACE(name);
        RolloutGuard lasting, broken;
        EXPECT_EQ(warnings_of(lasting, {{name, bad}}, 30).size(), 1U);
        EXPECT_TRUE(warnings_of(broken, {{name, bad}}, 9).empty());
        EXPECT_TRUE(warnings_of(broken, {{name, good}}, 1).empty());
        EXPECT_TRUE(warnings_of(broken, {{name, bad}}, 9).empty());
        EXPECT_TRUE(warnings_of(broken, {{name, std::nan("")}}, 5).empty());  // a step without a new generation
        EXPECT_EQ(warnings_of(broken, {{name, bad}}, 1).size(), 1U);
    }
}

TEST(RolloutGuard, StopsWhereSamplerAndTrainerDiffer) {
    RolloutGuard guard;
    EXPECT_TRUE(warnings_of(guard, {{"kl_sampler_trainer", 1e-4}}, 20).empty());
    EXPECT_EQ(warnings_of(guard, {{"kl_sampler_trainer", 1e-2}}, 20).size(), 1U);
    EXPECT_EQ(guard.observe(1, {{"kl_sampler_trainer", 0.3}}, /*replays=*/true).size(), 0U);
    try {
        guard.observe(7, {{"kl_sampler_trainer", 0.3}}, false);
        ADD_FAILURE() << "it goes on";
    } catch (const Error& error) {
        test::Expected("rollout.sampler-differs").check(error);
    }
}

}  // namespace
}  // namespace unsloth::train
