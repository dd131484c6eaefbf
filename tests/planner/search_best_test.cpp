// Which of a few candidates are tried, and that the best ones are found.
#include "unsloth/planner/search_best.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <set>

namespace unsloth::planner {
namespace {

TEST(SearchBest, EqualsBruteForceWithFewerTrials) {
    std::mt19937 random(7);
    const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    int trials = 0, candidates = 0;
    for (int round = 0; round < 500; ++round) {
        const auto size = static_cast<std::size_t>(draw(1, 20)), count = static_cast<std::size_t>(draw(1, 5));
        std::vector<double> costs, least;
        std::vector<bool> does;
        for (std::size_t i = 0; i < size; ++i) {
            costs.push_back(draw(1, 1000));
            least.push_back(costs.back() * draw(70, 100) / 100);
            does.push_back(draw(0, 3) > 0);
        }
        std::vector<double> expected;
        for (std::size_t i = 0; i < size; ++i)
            if (does[i]) expected.push_back(costs[i]);
        std::sort(expected.begin(), expected.end());
        expected.resize(std::min(expected.size(), count));
        std::set<std::size_t> tried;
        const std::vector<Tried> found = search_best(least, count, [&](std::size_t i) -> std::optional<double> {
            EXPECT_TRUE(tried.insert(i).second) << "tried twice";
            return does[i] ? std::optional(costs[i]) : std::nullopt;
        });
        ASSERT_EQ(found.size(), expected.size()) << round;
        for (std::size_t i = 0; i < found.size(); ++i) {
            EXPECT_EQ(found[i].cost, expected[i]) << round;
            EXPECT_EQ(found[i].cost, costs[found[i].candidate]);
        }
        trials += static_cast<int>(tried.size());
        candidates += static_cast<int>(size);
    }
    EXPECT_LT(trials, candidates * 2 / 3);
}

TEST(SearchBest, TakesThePlainerOneWhereItIsAsGood) {
    const std::vector<double> costs = {100, 120, 99, 90};
    const auto cost_of = [&](std::size_t i) { return std::optional(costs[i]); };
    EXPECT_EQ(search_best(costs, 4, cost_of, 0.0).front().candidate, 3U);
    EXPECT_EQ(search_best(costs, 4, cost_of, 0.05).front().candidate, 3U);
    const std::vector<Tried> best = search_best(costs, 4, cost_of, 0.15);
    EXPECT_EQ(best.front().candidate, 0U);
    EXPECT_EQ(best[1].candidate, 3U);
    EXPECT_EQ(search_best(costs, 1, cost_of, 0.15).front().candidate, 0U);
}

TEST(SearchBest, SaysNothingWhereNothingWillDo) {
    EXPECT_TRUE(search_best({1, 2}, 3, [](std::size_t) { return std::nullopt; }).empty());
    EXPECT_TRUE(search_best({}, 3, [](std::size_t) { return 1.0; }).empty());
}

}  // namespace
}  // namespace unsloth::planner
