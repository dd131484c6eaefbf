#include "unsloth/train/doubts.h"

#include "unsloth/train/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>

namespace unsloth::train {
namespace {

std::string about_rate(config::FinetuningType type, double rate) {
    config::Config config;
    config.lora.finetuning_type = type;
    config.training.learning_rate = rate;
    spec::ModelSpec spec;
    spec.model_type = "llama";
    spec.hidden_size = 4096;
    return doubt_learning_rate(config, spec).value_or("");
}

TEST(Doubts, LearningRatesFarFromTheUsual) {
    for (const double usual : {1e-5, 2e-4, 2e-3}) EXPECT_EQ(about_rate(config::FinetuningType::lora, usual), "");
    for (const double usual : {1e-7, 2e-5, 1e-4}) EXPECT_EQ(about_rate(config::FinetuningType::full, usual), "");
    EXPECT_EQ(
        about_rate(config::FinetuningType::lora, 0.02),
        "training.learning_rate 0.02 is far from what is usual for a LoRA (1e-5 to 2e-3, often 2e-4): the loss may "
        "rise instead of falling; auto takes 0.000286");
    EXPECT_TRUE(about_rate(config::FinetuningType::lora, 2e-7).ends_with("little will be learnt; auto takes 0.000286"));
    EXPECT_TRUE(about_rate(config::FinetuningType::full, 2e-4).find("often 1e-5") != std::string::npos);
    EXPECT_TRUE(about_rate(config::FinetuningType::full, 0).ends_with("little will be learnt; auto takes 2.86e-05"));
}

TEST(Doubts, OptionsThatDoNothingOnThisMachine) {
    config::Config config;
    EXPECT_TRUE(options_without_effect(config, /*on_gpu=*/false, /*sharers=*/1).empty());
    config.training.max_memory_gib = 8;
    config.distributed.zero_stage = 2;
    EXPECT_EQ(options_without_effect(config, false, 1).size(), 2u);
    EXPECT_TRUE(options_without_effect(config, true, 2).empty());
    config.model.max_memory = {{"0", "12GiB"}, {"cpu", "8GiB"}};
    EXPECT_TRUE(options_without_effect(config, true, 2).empty());
    EXPECT_NE(options_without_effect(config, false, 2).at(1).find("model.max_memory's '0' has no effect"),
              std::string::npos);
    config.distributed.pp_size = 2;
    EXPECT_NE(options_without_effect(config, true, 1).at(0).find("each stage of the pipeline"), std::string::npos);
}

TEST(Doubts, AWarmUpThatDoesNotEnd) {
    config::TrainingOptions training;
    EXPECT_FALSE(doubt_warmup(training, 3)) << "nobody asked for the default";
    training.warmup_steps = 100;
    EXPECT_FALSE(doubt_warmup(training, 101));
    EXPECT_EQ(doubt_warmup(training, 100).value_or("").substr(0, 57),
              "training.warmup_steps is 100, and the run has 100 steps: ");
    training.lr_scheduler_type = config::Schedule::constant;
    EXPECT_FALSE(doubt_warmup(training, 100));
}

// 5e-4 (2000 / hidden)^p with p of the model's family, by hand.
TEST(LearningRate, FollowsThePublishedRule) {
    const auto rate = [](const char* family, int64_t hidden, config::FinetuningType type, config::Objective objective) {
        config::Config config;
        config.lora.finetuning_type = type;
        config.training.objective = objective;
        spec::ModelSpec spec;
        spec.model_type = family;
        spec.hidden_size = hidden;
        return learning_rate_rule(config, spec).rate;
    };
    constexpr auto lora = config::FinetuningType::lora, full = config::FinetuningType::full;
    constexpr auto sft = config::Objective::sft;
    EXPECT_NEAR(rate("llama", 4096, lora, sft), 2.857e-4, 1e-6);
    EXPECT_NEAR(rate("llama", 2000, lora, sft), 5e-4, 1e-9);
    EXPECT_NEAR(rate("llama", 8192, full, sft), 1.663e-5, 1e-7);
    EXPECT_NEAR(rate("qwen3", 5120, lora, sft), 4.648e-4, 1e-6);
    EXPECT_EQ(rate("llama", 64, lora, sft), rate("llama", 1024, lora, sft)) << "nothing is known of so small a model";
    EXPECT_EQ(rate("llama", 4096, lora, config::Objective::dpo), 1e-5);
}

TEST(LearningRate, LoraPlusGivesBAndEmbeddingsRatesOfTheirOwn) {
    config::Config config;
    EXPECT_EQ(adamw_settings(config).rate_factors, (std::array<double, ops::rate_groups>{1, 1, 1, 1}));
    config.lora.loraplus_lr_ratio = 16;
    config.lora.loraplus_lr_embedding = 1e-6;
    EXPECT_EQ(adamw_settings(config).rate_factors, (std::array<double, ops::rate_groups>{1, 16, 1e-6 / 2e-4, 1}));
}

TEST(Doubts, ALossThatRisesTenfoldIsToldOnce) {
    LossWatch watch;
    for (const double fine : {2.5, 1.2, 0.5, 4.9, 0.4}) EXPECT_EQ(watch.observe(1, fine), std::nullopt) << fine;
    EXPECT_EQ(watch.observe(6, NAN), std::nullopt);
    const auto told = watch.observe(7, 4.1);
    ASSERT_TRUE(told);
    EXPECT_NE(told->find("step 7: the loss is 4.1, more than ten times the 0.4 of step 1"), std::string::npos) << *told;
    EXPECT_EQ(watch.observe(8, 40), std::nullopt);

    LossWatch memorised;
    EXPECT_EQ(memorised.observe(1, 0.001), std::nullopt);
    EXPECT_EQ(memorised.observe(2, 0.9), std::nullopt);
}

TEST(Doubts, AnOptimizerOnTheHostWantsThreads) {
    config::DistributedOptions distributed;
    EXPECT_FALSE(doubt_host_threads(distributed, 1, 32)) << "it is on the device";
    distributed.offload_optimizer = config::OptimizerPlace::cpu;
    EXPECT_FALSE(doubt_host_threads(distributed, 16, 32));
    EXPECT_FALSE(doubt_host_threads(distributed, 1, 1)) << "there are no more";
    EXPECT_NE(doubt_host_threads(distributed, 1, 32).value_or("").find("has 32 CPUs: set OMP_NUM_THREADS"),
              std::string::npos);
}

}  // namespace
}  // namespace unsloth::train
