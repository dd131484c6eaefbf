// Decisions: the temperature that held-out rows say, and the gradient of a whole model.
#include <random>

#include "train/support.h"
#include "unsloth/formats/decision_calibration.h"
#include "unsloth/objective/calibration.h"

namespace unsloth {
namespace {

using namespace test;

void alone(std::vector<float>&) {}

/// Answers drawn from softmax(logits / temperature): of logits that are too sure of themselves, or not enough.
std::vector<objective::RatedDecision> drawn(double temperature, int count) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal(0, 3);
    std::vector<objective::RatedDecision> decisions;
    for (int i = 0; i < count; ++i) {
        std::vector<float> logits;
        std::vector<double> weights;
        for (int option = 0; option < 3; ++option) {
            logits.push_back(normal(random));
            weights.push_back(std::exp(static_cast<double>(logits.back()) / temperature));
        }
        std::discrete_distribution<std::size_t> answer(weights.begin(), weights.end());
        data::OptionTokens options{{10, 11, 12}, {0, 0, 0}};
        options.shares[answer(random)] = 1;
        decisions.emplace_back(options, logits.data());
    }
    return decisions;
}

TEST(Calibration, FindsTheTemperatureThatAnswersWereDrawnAt) {
    for (const double temperature : {0.6, 1.0, 2.5}) {
        const auto found = objective::fit_temperature(drawn(temperature, 4000), alone);
        ASSERT_TRUE(found);
        EXPECT_NEAR(found->temperature, temperature, 0.08 * temperature);
        EXPECT_EQ(found->rows, 4000);
        EXPECT_LE(found->nll_after, found->nll_before + 1e-6);
        EXPECT_LT(found->ece_after, 0.03);
        if (temperature > 2) {
            EXPECT_GT(found->ece_before, 0.1);
        }
    }
}

TEST(Calibration, IsTheSameOverRanksAndStaysWithinItsBounds) {
    std::vector<objective::RatedDecision> all = drawn(2, 200);
    const auto whole = objective::fit_temperature(all, alone);
    // Another rank that has as many rows alike: the sums are twice these.
    const auto twice = objective::fit_temperature(all, [](std::vector<float>& values) {
        for (float& value : values) value *= 2;
    });
    EXPECT_NEAR(whole->temperature, twice->temperature, 1e-5);
    EXPECT_EQ(twice->rows, 400);
    EXPECT_NEAR(whole->ece_before, twice->ece_before, 1e-6);
    EXPECT_FALSE(objective::fit_temperature({}, alone));
    const float sure[] = {4, 0};
    const objective::RatedDecision right({{1, 2}, {1, 0}}, sure), wrong({{1, 2}, {0, 1}}, sure);
    EXPECT_NEAR(objective::fit_temperature({right}, alone)->temperature, 0.05, 1e-6);
    EXPECT_NEAR(objective::fit_temperature({wrong}, alone)->temperature, 20, 1e-4);
}

TEST(Calibration, AFileIsReadAsItWasWritten) {
    const ScratchFolder folder;
    EXPECT_FALSE(formats::read_decision_calibration(folder.path()));
    const auto found = objective::fit_temperature(drawn(2, 50), alone);
    const auto write = [&](const std::string& text) { folder.write(formats::decision_calibration_file, text); };
    const std::string text = formats::write_decision_calibration(*found);
    write(text);
    const auto read = formats::read_decision_calibration(folder.path());
    EXPECT_EQ(read->temperature, found->temperature);
    EXPECT_EQ(read->rows, 50);
    EXPECT_EQ(read->ece_after, found->ece_after);
    for (const auto& [from, to] : {std::pair{R"("version": 1)", R"("version": 2)"},
                                   {R"("rows": 50)", R"("lines": 50)"},
                                   {R"("temperature": )", R"("temperature": -)"},
                                   {"{", "["}}) {
        std::string other = text;
        other.replace(other.find(from), std::string(from).size(), to);
        write(other);
        EXPECT_THROW(formats::read_decision_calibration(folder.path()), Error) << other;
    }
}

}  // namespace
}  // namespace unsloth
