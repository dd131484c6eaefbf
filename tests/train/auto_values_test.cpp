// training.learning_rate auto and lora.r auto: published rules, with numbers by hand.
#include "unsloth/config/auto_values.h"

#include <gtest/gtest.h>

#include "unsloth/formats/shapes.h"
#include "unsloth/train/rank_rule.h"

namespace unsloth::train {
namespace {

constexpr auto lora = config::FinetuningType::lora, full = config::FinetuningType::full;

config::LearningRateRule rule_of(const char* family, int64_t hidden, config::FinetuningType type = lora,
                                 config::Objective objective = config::Objective::sft, double loraplus = 0) {
    config::Config config;
    config.lora.finetuning_type = type;
    config.lora.loraplus_lr_ratio = loraplus;
    config.training.objective = objective;
    spec::ModelSpec spec;
    spec.model_type = family;
    spec.hidden_size = hidden;
    return config::learning_rate_rule(config, spec);
}

double rate(const char* family, int64_t hidden, config::FinetuningType type = lora,
            config::Objective objective = config::Objective::sft) {
    return rule_of(family, hidden, type, objective).rate;
}

// 5e-4 (2000 / hidden)^p with p of the model's family, by hand.
TEST(LearningRate, FollowsThePublishedRule) {
    EXPECT_NEAR(rate("llama", 4096), 2.857e-4, 1e-6);
    EXPECT_NEAR(rate("llama", 2000), 5e-4, 1e-9);
    EXPECT_NEAR(rate("llama", 8192, full), 1.663e-5, 1e-7);
    EXPECT_NEAR(rate("qwen3", 5120), 4.648e-4, 1e-6);
    EXPECT_EQ(rate("llama", 64), rate("llama", 1024)) << "nothing is known of so small a model";
    EXPECT_NE(rule_of("llama", 4096).reason.find("2.86e-04 = 5e-4 x (2000 / 4096)^0.781"), std::string::npos);
}

TEST(LearningRate, FamiliesWithoutAFitTakeTheLowerOfBoth) {
    EXPECT_EQ(rate("mistral", 4096), rate("llama", 4096));
    EXPECT_NEAR(rate("gemma3_text", 1152), 5.218e-4, 1e-6) << "Qwen's";
    EXPECT_NE(rule_of("gemma3_text", 1152).reason.find("gemma3_text, which has no fit"), std::string::npos);
    EXPECT_EQ(rate("gpt_oss", 2880), 1e-4);
}

TEST(LearningRate, ObjectivesHaveTheirs) {
    EXPECT_EQ(rate("llama", 4096, lora, config::Objective::dpo), 1e-5);
    EXPECT_EQ(rate("qwen3", 4096, full, config::Objective::kto), 1e-6);
    EXPECT_EQ(rate("llama", 4096, lora, config::Objective::grpo), rate("llama", 4096));
    EXPECT_NE(rule_of("llama", 4096, lora, config::Objective::grpo).reason.find("reinforcement"), std::string::npos);
}

TEST(LearningRate, LoraPlusDividesThatOfA) {
    const config::LearningRateRule divided = rule_of("llama", 2000, lora, config::Objective::sft, 16);
    EXPECT_NEAR(divided.rate, 5e-4 / 16, 1e-7);
    EXPECT_NE(divided.reason.find("so that B has 5.00e-04"), std::string::npos) << divided.reason;
    EXPECT_EQ(rule_of("llama", 2000, full, config::Objective::sft, 16).rate, 5e-5) << "there is no B";
}

/// A LoRA on all seven projections of Llama-3.1-8B has 2,621,440 parameters for each of its ranks.
TEST(Rank, HasAsManyParametersAsThereAreTargets) {
    const spec::ModelSpec spec = formats::builtin_shape("llama-3.1-8b");
    spec::LoraSpec all;
    all.target_modules = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
    config::Config config;
    const auto of = [&](std::optional<int64_t> targets) { return rank_rule(config, spec, all, targets); };
    constexpr int64_t each = 2'621'440;
    EXPECT_EQ(of(1000).r, 8);
    EXPECT_EQ(of(8 * each).r, 8);
    EXPECT_EQ(of(8 * each + 1).r, 16);
    EXPECT_EQ(of(64 * each).r, 64);
    EXPECT_NE(of(64 * each).reason.find("167772160 parameters are at least the 167772160 targets"), std::string::npos);
    EXPECT_EQ(of(1000 * each).r, 256);
    EXPECT_NE(of(1000 * each).reason.find("the most that is chosen"), std::string::npos);
    EXPECT_EQ(of(std::nullopt).r, 32);
    all.rank_pattern = {{"down_proj", 1024}};
    EXPECT_EQ(of(64 * each).r, 8) << "down_proj alone has more";
    all.rank_pattern.clear();
    all.target_modules = {"q_proj"};
    EXPECT_EQ(of(8 * each).r, 128);
    for (const config::Objective objective : {config::Objective::grpo, config::Objective::dpo}) {
        config.training.objective = objective;
        EXPECT_EQ(of(1000 * each).r, 16);
    }
}

}  // namespace
}  // namespace unsloth::train
