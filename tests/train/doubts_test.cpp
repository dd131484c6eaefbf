#include "unsloth/train/doubts.h"

#include <gtest/gtest.h>

#include <cmath>

namespace unsloth::train {
namespace {

std::string about_rate(config::FinetuningType type, double rate) {
    config::Config config;
    config.lora.finetuning_type = type;
    config.training.learning_rate = rate;
    return doubt_learning_rate(config).value_or("");
}

TEST(Doubts, LearningRatesFarFromTheUsual) {
    for (const double usual : {1e-5, 2e-4, 2e-3}) EXPECT_EQ(about_rate(config::FinetuningType::lora, usual), "");
    for (const double usual : {1e-7, 2e-5, 1e-4}) EXPECT_EQ(about_rate(config::FinetuningType::full, usual), "");
    EXPECT_EQ(
        about_rate(config::FinetuningType::lora, 0.02),
        "training.learning_rate 0.02 is far from what is usual for a LoRA (1e-5 to 2e-3, often 2e-4): the loss may "
        "rise instead of falling");
    EXPECT_TRUE(about_rate(config::FinetuningType::lora, 2e-7).ends_with("little will be learnt"));
    EXPECT_TRUE(about_rate(config::FinetuningType::full, 2e-4).find("often 1e-5") != std::string::npos);
    EXPECT_TRUE(about_rate(config::FinetuningType::full, 0).ends_with("little will be learnt"));
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

}  // namespace
}  // namespace unsloth::train
