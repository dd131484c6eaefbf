#include "unsloth/train/run_warnings.h"

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
    EXPECT_TRUE(
        about_rate(config::FinetuningType::lora, 2e-7).ends_with("little will be learned; auto takes 0.000286"));
    EXPECT_TRUE(about_rate(config::FinetuningType::full, 2e-4).find("often 1e-5") != std::string::npos);
    EXPECT_TRUE(about_rate(config::FinetuningType::full, 0).ends_with("little will be learned; auto takes 2.86e-05"));
}

TEST(Doubts, RouterLossesThatTheModelAsksFor) {
    config::Config config;
    spec::ModelSpec spec;
    EXPECT_FALSE(describe_router_loss(config, spec));
    spec.experts = spec::ExpertsSpec{8, 2, 16};
    EXPECT_FALSE(describe_router_loss(config, spec));
    spec.experts->router_aux = 0.02;
    EXPECT_NE(describe_router_loss(config, spec).value_or("").find("with its router_aux_loss_coef 0.02"),
              std::string::npos);
    config.training.objective = config::Objective::dpo;
    EXPECT_NE(describe_router_loss(config, spec).value_or("").find("this run has none"), std::string::npos);
    config.training.router_aux_loss_coef = 0;
    EXPECT_FALSE(describe_router_loss(config, spec));
}

TEST(Doubts, OptionsThatDoNothingOnThisMachine) {
    config::Config config;
    EXPECT_TRUE(options_without_effect(config, /*on_gpu=*/false, /*data_parallel_size=*/1).empty());
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
    EXPECT_EQ(
        doubt_warmup(training, 3).value_or(""),
        "training.warmup_steps is 5, and the run has 3 steps: the learning rate never reaches 0.0002, it is 8e-05 "
        "at most; 5 to 10 % of the steps are usual: --warmup_steps 0");
    EXPECT_NE(doubt_warmup(training, 5).value_or("").find("it is 0.00016 at most"), std::string::npos);
    EXPECT_NE(doubt_warmup(training, 9).value_or("").find("most of them train at less than"), std::string::npos);
    EXPECT_FALSE(doubt_warmup(training, 10));
    EXPECT_FALSE(doubt_warmup(training, 0)) << "nothing is trained";
    training.lr_scheduler_type = config::Schedule::cosine_warmup_with_min_lr;  // its warm-up ends one step earlier
    training.lr_scheduler_kwargs = {{"min_lr_rate", "0.1"}};
    EXPECT_NE(doubt_warmup(training, 4).value_or("").find("it is 0.00016 at most"), std::string::npos);
    EXPECT_NE(doubt_warmup(training, 5).value_or("").find("most of them train at less than"), std::string::npos);
    training.lr_scheduler_kwargs.clear();
    training.lr_scheduler_type = config::Schedule::constant;
    EXPECT_FALSE(doubt_warmup(training, 3));
    training.lr_scheduler_type = config::Schedule::polynomial;
    EXPECT_FALSE(doubt_warmup(training, 100));
    training.lr_scheduler_type = config::Schedule::cosine;
    training.warmup_steps = 0;
    EXPECT_FALSE(doubt_warmup(training, 1));
    training.warmup_ratio = 0.6;
    EXPECT_EQ(doubt_warmup(training, 10).value_or("").substr(0, 75),
              "training.warmup_ratio makes 6 steps of warm-up, and the run has 10 steps: m");
}

TEST(Doubts, OptionsForLongerRuns) {
    config::Config config;
    config::TrainingOptions& t = config.training;
    const RunLength three{3, 20, 8};
    EXPECT_TRUE(doubt_lengths(config, three).empty()) << "nobody asked for the defaults";
    const auto only = [&](const char* words) {
        const std::vector<std::string> doubts = doubt_lengths(config, three);
        EXPECT_EQ(doubts.size(), 1u) << words;
        EXPECT_NE(doubts.empty() ? std::string::npos : doubts.front().find(words), std::string::npos) << doubts.front();
    };
    t.eval_steps = 3;
    EXPECT_TRUE(doubt_lengths(config, three).empty());
    t.eval_steps = 4;
    only("training.eval_steps is 4, and the run has 3 steps: the only evaluation");
    t.eval_steps = 1;
    t.early_stopping_patience = 1;
    EXPECT_TRUE(doubt_lengths(config, three).empty());
    t.early_stopping_patience = 2;
    only("2 evaluations come before the run's end");
    t = {};
    t.save_steps = 10;
    only("training.save_steps is 10, and the run has 3 steps");
    t = {};
    t.logging_steps = 10;
    only("training.logging_steps is 10, and the run has 3 steps");
    t = {};
    t.num_train_epochs = 0.03;
    EXPECT_EQ(
        doubt_lengths(config, {1, 20, 8}),
        std::vector<std::string>{"training.num_train_epochs is 0.03: the run has 1 step, which sees 8 of 20 rows"});
    t.max_steps = 1;
    EXPECT_TRUE(doubt_lengths(config, {1, 20, 8}).empty()) << "max_steps counts";
    t = {};
    t.gradient_accumulation_steps = 32;
    EXPECT_NE(doubt_lengths(config, {1, 20, 64}).at(0).find("steps of 64 rows, and there are 20"), std::string::npos);
    t.max_tokens_per_batch = 512;
    EXPECT_TRUE(doubt_lengths(config, {1, 20, 64}).empty());
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
