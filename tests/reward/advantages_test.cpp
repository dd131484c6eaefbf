// Advantages against hand-checked numbers of TRL, and with UNSLOTH_SHARED against its 191 generations.
#include "unsloth/reward/advantages.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"

namespace unsloth::reward {
namespace {

using nlohmann::json;

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

AdvantageRule rule_of(const json& settings) {
    AdvantageRule rule;
    rule.num_generations = settings.at("num_generations");
    rule.weights = settings.at("reward_weights").get<std::vector<double>>();
    if (settings.value("advantage", "") == "leave_one_out") rule.kind = AdvantageKind::leave_one_out;
    const std::string scale = settings.value("scale_rewards", "group");
    rule.scale = scale == "batch" ? ScaleRewards::batch : scale == "none" ? ScaleRewards::none : ScaleRewards::group;
    if (settings.contains("multi_objective_aggregation")) rule.aggregation = Aggregation::normalize_then_sum;
    rule.normalize = settings.value("normalize_advantages", false);
    if (settings.contains("reward_clip_range"))
        rule.clip = settings["reward_clip_range"].get<std::pair<double, double>>();
    return rule;
}

TEST(Advantages, AreTrlsInEveryMode) {
    const char* const shared = std::getenv("UNSLOTH_SHARED");
    if (shared == nullptr) GTEST_SKIP() << "UNSLOTH_SHARED names no folder with the full reference collection";
    std::ifstream file(std::filesystem::path(shared) / "golden/rl/advantages.jsonl");
    int cases = 0;
    for (std::string line; std::getline(file, line); ++cases) {
        const auto one = nlohmann::ordered_json::parse(line);
        SCOPED_TRACE(one["name"].get<std::string>());
        std::vector<std::string> names;
        std::vector<Scores> scores;
        for (const auto& [name, values] : one["rewards"].items()) {
            names.push_back(name);
            Scores& column = scores.emplace_back();
            for (const auto& value : values)
                column.push_back(value.is_null() ? std::nullopt : std::optional(value.get<double>()));
        }
        std::vector<double> penalty;
        if (one.contains("old_logps")) {
            for (std::size_t i = 0; i < one["old_logps"].size(); ++i) {
                double sum = 0;
                for (std::size_t t = 0; t < one["old_logps"][i].size(); ++t)
                    sum += one["old_logps"][i][t].get<double>() - one["ref_logps"][i][t].get<double>();
                penalty.push_back(sum * one["settings"]["beta"].get<double>());
            }
        }
        const Advantages result = advantages(rule_of(json(one["settings"])), names, scores, penalty);
        expect_near(result.advantages, one["expected"]["advantages"].get<std::vector<double>>(), 1e-6);
        for (const auto& [name, value] : one["expected"]["metrics"].items()) {
            if (name == "kl") continue;  // the caller's: it has the log-probabilities
            const auto found = metric(result, name);
            ASSERT_EQ(found.has_value(), !value.is_null()) << name;
            if (found) {
                EXPECT_NEAR(*found, value.get<double>(), 1e-6) << name;
            }
        }
    }
    EXPECT_EQ(cases, 191);
}

}  // namespace
}  // namespace unsloth::reward
