// The losses of preferences against TRL's own (tests/golden/preference).
#include "unsloth/spec/preference_loss.h"
#include "train/support.h"
#include "unsloth/formats/peft.h"
#include "unsloth/objective/objective.h"

namespace unsloth {
namespace {

using namespace test;

spec::PreferenceRule rule_of(const nlohmann::json& rule) {
    const std::map<std::string, spec::PreferenceLossType> types = {
        {"sigmoid", spec::PreferenceLossType::sigmoid}, {"hinge", spec::PreferenceLossType::hinge},
        {"ipo", spec::PreferenceLossType::ipo},         {"robust", spec::PreferenceLossType::robust},
        {"simpo", spec::PreferenceLossType::simpo},     {"orpo", spec::PreferenceLossType::orpo},
        {"kto", spec::PreferenceLossType::kto}};
    return {types.at(rule["type"]),
            rule["beta"],
            rule.value("label_smoothing", 0.0),
            rule.value("gamma", 0.0),
            rule.value("desirable", 1.0),
            rule.value("undesirable", 1.0)};
}

// Values and gradients, in fp64, of TRL 1.16's trainers on random log-probabilities.
TEST(PreferenceLosses, AreThoseOfTrl) {
    const nlohmann::json cases = read_json(golden("preference/losses.json"));
    ASSERT_GT(cases.size(), 15U);
    for (const nlohmann::json& c : cases) {
        SCOPED_TRACE(c["rule"].dump());
        const spec::PreferenceRule rule = rule_of(c["rule"]);
        const std::size_t answers = c["tokens"].size();
        const auto answer = [&](std::size_t i) {
            return spec::AnswerLogProb{c["policy"][i], c["reference"][i], c["tokens"][i]};
        };
        std::vector<double> gradient(answers);
        double loss = 0;
        if (rule.type == spec::PreferenceLossType::kto) {
            double divergence = 0;
            for (std::size_t i = 0; i < answers; ++i)
                divergence += c["foreign_policy"][i].get<double>() - c["foreign_reference"][i].get<double>();
            divergence = std::max(0.0, divergence / static_cast<double>(answers));
            EXPECT_NEAR(divergence, c["metrics"]["kl"], 1e-12);
            for (std::size_t i = 0; i < answers; ++i) {
                const spec::VerdictLoss v = spec::verdict_loss(rule, answer(i), c["label"][i], divergence);
                loss += v.loss / static_cast<double>(answers);
                gradient[i] = v.by_answer / static_cast<double>(answers);
            }
        } else {
            const std::size_t pairs = answers / 2;
            double reward_chosen = 0, chosen_loss = 0, chosen_tokens = 0;
            for (std::size_t i = 0; i < pairs; ++i) {
                const spec::PairLoss p = spec::pair_loss(rule, answer(i), answer(pairs + i));
                loss += p.loss / static_cast<double>(pairs);
                gradient[i] = p.by_chosen / static_cast<double>(pairs);
                gradient[pairs + i] = p.by_rejected / static_cast<double>(pairs);
                reward_chosen += p.reward_chosen / static_cast<double>(pairs);
                chosen_loss -= answer(i).policy;
                chosen_tokens += answer(i).tokens;
            }
            // ORPO's whole loss has the chosen answers' with their prompts'.
            const bool with_prompts = c.contains("prompt_tokens");
            const double alpha = with_prompts ? 1.0 : c["rule"].value("rpo_alpha", 0.0);
            for (std::size_t i = 0; with_prompts && i < pairs; ++i) {
                chosen_loss -= c["prompt_policy"][i].get<double>();
                chosen_tokens += c["prompt_tokens"][i].get<double>();
            }
            loss += alpha * chosen_loss / chosen_tokens;
            for (std::size_t i = 0; i < pairs; ++i) gradient[i] -= alpha / chosen_tokens;
            for (std::size_t i = 0; with_prompts && i < pairs; ++i)
                EXPECT_NEAR(-alpha / chosen_tokens, c["prompt_gradient"][i], 1e-14);
            if (with_prompts) {
                EXPECT_NEAR(chosen_loss / chosen_tokens, c["metrics"]["nll_loss"], 1e-12);
            }
            EXPECT_NEAR(reward_chosen, c["metrics"]["rewards/chosen"], 1e-12);
        }
        EXPECT_NEAR(loss, c["loss"], 1e-12 * std::abs(c["loss"].get<double>()));
        for (std::size_t i = 0; i < answers; ++i)
            EXPECT_NEAR(gradient[i], c["gradient"][i], 1e-12 * std::abs(c["gradient"][i].get<double>()) + 1e-16) << i;
    }
}

// Loss, gradients and final values are trajectory_test's; here what the steps report.
TEST(Dpo, ReportsTheReferencesRewards) {
    UNSLOTH_NEEDS_XZ();
    const ScratchFolder folder;
    const Course course = train_all(make_config(reference_flags("dpo", folder)));
    const nlohmann::json metrics = read_json(golden("trajectory/dpo/metrics.json"));
    const double bound = 10 * metrics["spread"]["fp64"]["margins_max_abs"].get<double>();
    ASSERT_EQ(course.steps.size(), metrics["steps"].size());
    for (std::size_t i = 0; i < course.steps.size(); ++i) {
        const nlohmann::json& expected = metrics["steps"][i];
        const auto mean = [&](const char* key) {
            return (expected[key][0].get<double>() + expected[key][1].get<double>()) / 2;
        };
        const objective::Figures& figures = course.steps[i].figures;
        EXPECT_NEAR(figure(figures, "rewards/chosen"), mean("rewards_chosen"), bound) << "step " << i + 1;
        EXPECT_NEAR(figure(figures, "rewards/rejected"), mean("rewards_rejected"), bound) << "step " << i + 1;
        EXPECT_NEAR(figure(figures, "rewards/margins"), mean("margins"), bound) << "step " << i + 1;
        EXPECT_NEAR(figure(figures, "logps/chosen"), mean("policy_chosen_logps"), 10 * bound) << "step " << i + 1;
        double right = 0;
        for (int pair = 0; pair < 2; ++pair) right += expected["margins"][pair].get<double>() > 0 ? 0.5 : 0;
        EXPECT_EQ(figure(figures, "rewards/accuracies"), right) << "step " << i + 1;
    }
}

}  // namespace
}  // namespace unsloth
