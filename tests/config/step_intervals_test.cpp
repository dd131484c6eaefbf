// Shares of a run and parts of an epoch, in steps. The values of shares are transformers' (math.ceil(steps * share)).
#include "unsloth/config/step_intervals.h"

#include <gtest/gtest.h>

#include "config/support.h"

namespace unsloth::testing {
namespace {

config::StepIntervals intervals(const std::string& training, int64_t steps, int64_t of_epoch) {
    const std::string text = R"({"data": {"val_size": 2}, "training": )" + training + "}";
    return config::step_intervals(load_text(text).config.training, steps, of_epoch);
}

TEST(StepIntervals, NumbersAreSteps) {
    const config::StepIntervals every = intervals(R"({"eval_steps": 7, "save_steps": 3, "logging_steps": 2})", 100, 50);
    EXPECT_EQ(every.eval, 7);
    EXPECT_EQ(every.save, 3);
    EXPECT_EQ(every.log, 2);
    const config::StepIntervals usual = intervals("{}", 100, 50);
    EXPECT_EQ(usual.eval, 0);
    EXPECT_EQ(usual.save, 500);
    EXPECT_EQ(usual.log, 1);
}

TEST(StepIntervals, SharesAreOfTheRunRoundedUp) {
    const config::StepIntervals every =
        intervals(R"({"eval_steps": 0.1, "save_steps": 0.25, "logging_steps": 0.01})", 95, 50);
    EXPECT_EQ(every.eval, 10);
    EXPECT_EQ(every.save, 24);
    EXPECT_EQ(every.log, 1);
    EXPECT_EQ(intervals(R"({"eval_steps": 0.999})", 4, 4).eval, 4);
    EXPECT_EQ(intervals(R"({"save_steps": 0.5})", 0, 4).save, 0);  // a run that only checks
}

TEST(StepIntervals, TimesAnEpochAreOfItsSteps) {
    const config::StepIntervals every = intervals(R"({"evals_per_epoch": 4, "saves_per_epoch": 1})", 300, 100);
    EXPECT_EQ(every.eval, 25);
    EXPECT_EQ(every.save, 100);
    EXPECT_EQ(intervals(R"({"evals_per_epoch": 3})", 300, 100).eval, 34);
    EXPECT_EQ(intervals(R"({"evals_per_epoch": 0.5})", 300, 100).eval, 200);
    EXPECT_EQ(intervals(R"({"saves_per_epoch": 1000})", 300, 100).save, 1);
    EXPECT_EQ(intervals(R"({"saves_per_epoch": 2, "max_steps": 10})", 10, 100).save, 50);
}

TEST(StepIntervals, OneOfTheFormsSaysIt) {
    EXPECT_CONTAINS(file_error(R"({"data": {"val_size": 2}, "training": {"eval_steps": 2, "evals_per_epoch": 2}})"),
                    "training.eval_steps cannot be combined with training.evals_per_epoch");
    EXPECT_CONTAINS(file_error(R"({"training": {"save_steps": 2, "saves_per_epoch": 2}})"),
                    "training.save_steps 2 cannot be combined with training.saves_per_epoch");
    // 500 that somebody wrote, too, but not the default.
    EXPECT_CONTAINS(file_error(R"({"training": {"save_steps": 500, "saves_per_epoch": 2}})"), "cannot be combined");
    const config::LoadedConfig loaded = load_text(R"({"training": {"saves_per_epoch": 2}})");
    EXPECT_EQ(loaded.config.training.save_steps, 0);
    EXPECT_EQ(load_text(config::config_to_json(loaded.config)).config.training.saves_per_epoch, 2);
    EXPECT_CONTAINS(file_error(R"({"training": {"save_steps": 2.5}})"), "a whole number of steps, found 2.5");
    EXPECT_CONTAINS(file_error(R"({"training": {"save_steps": -1}})"), "a number >= 0");
    EXPECT_CONTAINS(file_error(R"({"training": {"logging_steps": 0}})"), "a number > 0");
    EXPECT_CONTAINS(file_error(R"({"training": {"evals_per_epoch": 2}})"),
                    "training.evals_per_epoch needs data.eval_file");
    EXPECT_TRUE(
        load_text(R"({"data": {"val_size": 2}, "training": {"evals_per_epoch": 1, "load_best_model_at_end": true}})")
            .config.training.load_best_model_at_end);
    EXPECT_TRUE(config::saves_checkpoints(loaded.config.training));
}

}  // namespace
}  // namespace unsloth::testing
