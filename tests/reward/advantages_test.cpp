// Advantages against hand-checked numbers of TRL. Its generations go through `probe grpo` (tests/e2e/probes_test.py).
#include "unsloth/reward/advantages.h"

#include <gtest/gtest.h>

#include <cmath>

#include "unsloth/core/error.h"

namespace unsloth::reward {
namespace {

constexpr auto absent = std::nullopt;

/// Five groups of four completions, two functions.
const std::vector<Scores> two_functions{
    {1, 0, 0, 1, 2, 2, 2, 2, 0, absent, 1, 3, absent, absent, absent, 5, absent, absent, absent, absent},
    {.5, .1, .2, .9, .3, .3, .3, .3, absent, absent, .4, .6, .1, .2, absent, .4, absent, absent, absent, absent}};

AdvantageRule rule_of_four() {
    AdvantageRule rule;
    rule.num_generations = 4;
    rule.weights = {1, 0.5};
    return rule;
}

std::optional<double> metric(const Advantages& result, const std::string& name) {
    for (const auto& [key, value] : result.metrics)
        if (key == name) return value;
    ADD_FAILURE() << "no metric " << name;
    return absent;
}

void expect_near(const std::vector<double>& found, const std::vector<double>& expected, double tolerance) {
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], tolerance) << "row " << i;
}

TEST(Advantages, AreTrlsOfGroups) {
    const Advantages result = advantages(rule_of_four(), {"a", "b"}, two_functions);
    expect_near(result.advantages, {.7254,  -.894,  -.8266, .9953,  0, 0,      0, 0, -.898, 0,
                                    -.1796, 1.0776, -.5858, -.5689, 0, 1.1546, 0, 0, 0,     0},
                6e-5);
    EXPECT_NEAR(*metric(result, "frac_reward_zero_std"), 0.2, 1e-12);
    EXPECT_EQ(result.zero_groups, (std::vector<bool>{false, true, false, false, false}));
    EXPECT_EQ(result.unscored_rows, 6);
    EXPECT_EQ(result.partial_rows, 3);
}

TEST(Advantages, AreTrlsOfTheBatch) {
    AdvantageRule rule = rule_of_four();
    rule.scale = ScaleRewards::batch;
    const Advantages result = advantages(rule, {"a", "b"}, two_functions);
    expect_near(result.advantages, {.359,   -.4424, -.4091,  .4925,   0, 0,      0, 0, -1.0018, 0,
                                    -.2004, 1.2021, -1.1576, -1.1242, 0, 2.2818, 0, 0, 0,       0},
                6e-5);
    EXPECT_NEAR(*metric(result, "frac_reward_zero_std"), 0.2, 1e-12);  // by group, whatever divides
}

TEST(Advantages, AreGdposWhereEachFunctionIsNormalized) {
    AdvantageRule rule = rule_of_four();
    rule.aggregation = Aggregation::normalize_then_sum;
    const Advantages result = advantages(rule, {"a", "b"}, two_functions);
    expect_near(result.advantages, {1.1021, -1.4971, -1.3391, 1.7341, 0, 0,     0, 0, -.9915, 0,
                                    -.6492, 1.6407,  -.4955,  -.1239, 0, .6193, 0, 0, 0,      0},
                6e-5);
    EXPECT_NEAR(*metric(result, "reward"), 1.521429, 1e-6);
    EXPECT_NEAR(*metric(result, "reward_std"), 1.497269, 1e-6);
}

TEST(Advantages, AreZeroWhereAGroupsRewardsAreEqual) {
    for (const double reward : {0.3, 10.1, 100.3, 1000.1}) {
        AdvantageRule rule;
        rule.num_generations = 8;
        const Advantages result = advantages(rule, {"a"}, {Scores(8, reward)});
        for (const double value : result.advantages) EXPECT_EQ(value, 0);
        EXPECT_EQ(metric(result, "frac_reward_zero_std"), 1.0);
    }
}

TEST(Advantages, LeaveOneOut) {
    AdvantageRule rule;
    rule.num_generations = 4;
    rule.kind = AdvantageKind::leave_one_out;
    const Scores scores{1, 0, absent, 5, 2, absent, absent, absent};
    expect_near(advantages(rule, {"a"}, {scores}).advantages, {-1.5, -3, 0, 4.5, 0, 0, 0, 0}, 1e-12);
    rule.clip = {-1, 2};
    expect_near(advantages(rule, {"a"}, {scores}).advantages, {0, -1.5, 0, 1.5, 0, 0, 0, 0}, 1e-12);
    const std::vector<double> penalty{1, 0, 9, 0, 0, 0, 0, 0};
    expect_near(advantages(rule, {"a"}, {scores}, penalty).advantages, {-1, -1, 0, 2, 0, 0, 0, 0}, 1e-12);
}

TEST(Advantages, RefuseWeightsThatDoNotFit) {
    AdvantageRule rule = rule_of_four();
    rule.weights = {1};
    EXPECT_THROW(advantages(rule, {"a", "b"}, two_functions), Error);
    rule.weights = {1, 1};
    rule.num_generations = 3;
    EXPECT_THROW(advantages(rule, {"a", "b"}, two_functions), Error);
}

}  // namespace
}  // namespace unsloth::reward
