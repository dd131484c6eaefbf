#include "ops/decision_cases.h"

namespace unsloth {
namespace {

TEST(DecisionOp, MatchesAutogradInDoublePrecision) {
    testing::check_on_cpu(testing::decision_cases(1));
}

TEST(DecisionOp, ALossByHand) {
    // Three options, the second of two tokens: p = 1/7, 2/7 + 2/7, 2/7.
    const float logits[] = {0, std::log(2.F), std::log(2.F), std::log(2.F)}, shares[] = {0, 1, -1, 0};
    double slopes[4];
    const auto figures = spec::decision_loss({.brier_weight = 0.5}, logits, shares, 4,
                                             [&](int32_t i, double slope) { slopes[i] = slope; });
    const double brier = (1.0 + 9.0 + 4.0) / 49;
    EXPECT_NEAR(figures.brier, brier, 1e-7);
    EXPECT_NEAR(figures.loss, std::log(7.0 / 4) + 0.5 * brier, 1e-7);
    EXPECT_EQ(figures.accuracy, 1);
    EXPECT_NEAR(slopes[0] + slopes[1] + slopes[2] + slopes[3], 0, 1e-12) << "a common shift changes nothing";
    EXPECT_LT(slopes[1], 0);
    EXPECT_EQ(slopes[1], slopes[2]);
}

TEST(DecisionOp, OptionsThatAreFarFromLikelyHaveAFiniteLoss) {
    const float logits[] = {0, 2000}, shares[] = {1, 0};
    const auto figures = spec::decision_loss({}, logits, shares, 2, [](int32_t, double) {});
    EXPECT_NEAR(figures.loss, 2000, 1e-3);
}

}  // namespace
}  // namespace unsloth
