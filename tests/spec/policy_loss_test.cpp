// Losses of policy gradients: what the golden numbers of TRL do not show. Those go through `probe grpo`
// (tests/e2e/probes_test.py).
#include "unsloth/spec/policy_loss.h"

#include <gtest/gtest.h>

#include <cmath>

#include "unsloth/spec/policy_batch.h"

namespace unsloth::spec {
namespace {

/// Two rows whose tokens hit each branch of clipping.
std::vector<PolicyCompletion> two_rows() {
    std::vector<PolicyCompletion> rows(2);
    rows[0].advantage = 0.7;
    rows[0].tokens = {{-1, -1.3, -1.1, -1.2}, {-0.5, -0.4, -0.8, -0.45}, {-2, -1.9, -1.7, -2.1}};
    rows[1].advantage = -1.2;
    rows[1].tokens = {{-0.2, -0.6, -0.3, -0.5}, {-3, -2.9, -2.6, std::nan("")}};
    for (PolicyCompletion& row : rows) row.entropies.assign(row.tokens.size(), 1.0);
    return rows;
}

/// Each derivative is that of the loss, where nothing of it is held constant (cispo, vespo hold their weights).
TEST(PolicyLoss, DerivativesAreThoseOfTheLoss) {
    for (const auto type : {PolicyLossType::grpo, PolicyLossType::bnpo, PolicyLossType::dr_grpo, PolicyLossType::dapo,
                            PolicyLossType::sapo, PolicyLossType::luspo}) {
        for (const auto level : {RatioLevel::token, RatioLevel::sequence, RatioLevel::sequence_sum}) {
            PolicyBatchOptions options;
            options.rule.type = type;
            options.rule.level = level;
            options.rule.beta = 0.3;
            options.rule.correction = SamplerCorrection::token_truncate;
            options.divisors = {2, 5, 9, 8, 2, 4};
            auto rows = two_rows();
            const PolicyBatchLoss result = policy_batch_loss(options, rows);
            for (std::size_t i = 0; i < rows.size(); ++i) {
                for (std::size_t t = 0; t < rows[i].tokens.size(); ++t) {
                    constexpr double step = 1e-6;
                    auto above = rows, below = rows;
                    above[i].tokens[t].logp += step;
                    below[i].tokens[t].logp -= step;
                    const double slope =
                        (policy_batch_loss(options, above).loss - policy_batch_loss(options, below).loss) / (2 * step);
                    EXPECT_NEAR(result.by_logps[i][t], slope, 1e-8)
                        << static_cast<int>(type) << " " << static_cast<int>(level) << ": " << i << ", " << t;
                }
            }
        }
    }
}

/// The divisors come from outside: a micro-batch may be cut into any passes.
TEST(PolicyLoss, RowsAddUpWhateverPassesTheyAreIn) {
    for (const auto type : {PolicyLossType::grpo, PolicyLossType::bnpo, PolicyLossType::dapo, PolicyLossType::vespo}) {
        PolicyBatchOptions options;
        options.rule.type = type;
        options.divisors = {2, 5, 9, 8, 2, 4};
        auto rows = two_rows();
        std::vector<PolicyCompletion> first{rows[0]}, second{rows[1]};
        const PolicyBatchLoss whole = policy_batch_loss(options, rows), a = policy_batch_loss(options, first),
                              b = policy_batch_loss(options, second);
        EXPECT_NEAR(whole.loss, a.loss + b.loss, 1e-14);
        EXPECT_EQ(whole.by_logps[0], a.by_logps[0]);
        EXPECT_EQ(whole.by_logps[1], b.by_logps[0]);
    }
}

/// A reference that finds a token certain which the policy almost rules out leaves the range of floats in TRL.
TEST(PolicyLoss, AFarReferenceStaysFinite) {
    PolicyBatchOptions options;
    options.rule.beta = 0.1;
    std::vector<PolicyCompletion> rows(1);
    rows[0].tokens = {{-900, -900, -1, -900}};
    rows[0].entropies = {1};
    const PolicyBatchLoss result = policy_batch_loss(options, rows);
    EXPECT_TRUE(std::isfinite(result.loss));
    EXPECT_TRUE(std::isfinite(result.by_logps[0][0]));
    EXPECT_EQ(result.cut_kl, 1);
}

TEST(PolicyLoss, ThresholdIsLinearBetweenRanks) {
    EXPECT_DOUBLE_EQ(entropy_threshold({4, 1, 3, 2}, 0.5), 2.5);
    EXPECT_DOUBLE_EQ(entropy_threshold({4, 1, 3, 2}, 1), 1);
    EXPECT_DOUBLE_EQ(entropy_threshold({4, 1, 3, 2}, 0), 4);
    EXPECT_DOUBLE_EQ(entropy_threshold({1, 1, 1}, 0.2), 1);
}

}  // namespace
}  // namespace unsloth::spec
