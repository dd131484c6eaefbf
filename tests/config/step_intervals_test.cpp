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
    EXPECT_EQ(every.eval.every, 7);
    EXPECT_EQ(every.save.every, 3);
    EXPECT_EQ(every.log.every, 2);
    const config::StepIntervals usual = intervals("{}", 100, 50);
    EXPECT_EQ(usual.eval.every, 0);
    EXPECT_EQ(usual.save.every, 500);
    EXPECT_EQ(usual.log.every, 1);
}

TEST(StepIntervals, SharesAreOfTheRunRoundedUp) {
    const config::StepIntervals every =
        intervals(R"({"eval_steps": 0.1, "save_steps": 0.25, "logging_steps": 0.01})", 95, 50);
    EXPECT_EQ(every.eval.every, 10);
    EXPECT_EQ(every.save.every, 24);
    EXPECT_EQ(every.log.every, 1);
    EXPECT_EQ(intervals(R"({"eval_steps": 0.999})", 4, 4).eval.every, 4);
    EXPECT_EQ(intervals(R"({"save_steps": 0.5})", 0, 4).save.every, 0);  // a run that only checks
}

TEST(StepIntervals, ARunStopsAtItsEndOrBefore) {
    const auto last = [](const std::string& training, int64_t steps) {
        return config::last_step(load_text(R"({"training": )" + training + "}").config.training, steps);
    };
    EXPECT_EQ(last("{}", 95), 95);
    EXPECT_EQ(last(R"({"stop_at_step": 10})", 95), 10);
    EXPECT_EQ(last(R"({"stop_at_step": 96})", 95), 95);
    EXPECT_EQ(last(R"({"stop_at_step": 0.125})", 95), 12);
    EXPECT_EQ(last(R"({"stop_at_step": 0.125})", 96), 12);
    EXPECT_EQ(last(R"({"stop_at_step": 0.5})", 0), 0);
}

std::vector<int64_t> chosen(const config::StepInterval& interval, int64_t steps) {
    std::vector<int64_t> all;
    for (int64_t step = 1; step <= steps; ++step)
        if (interval.falls_on(step)) all.push_back(step);
    return all;
}

TEST(StepIntervals, TimesAnEpochAreOfItsSteps) {
    const config::StepIntervals every = intervals(R"({"evals_per_epoch": 4, "saves_per_epoch": 1})", 300, 100);
    EXPECT_EQ(every.eval.every, 25);
    EXPECT_EQ(every.save.every, 100);
    EXPECT_EQ(intervals(R"({"evals_per_epoch": 3})", 300, 100).eval.every, 34);
    EXPECT_EQ(intervals(R"({"evals_per_epoch": 0.5})", 300, 100).eval.every, 200);
    EXPECT_EQ(intervals(R"({"saves_per_epoch": 1000})", 300, 100).save.every, 1);
    EXPECT_EQ(intervals(R"({"saves_per_epoch": 2, "max_steps": 10})", 10, 100).save.every, 50);
}

using Steps = std::vector<int64_t>;

TEST(StepIntervals, AnEpochHasAsManyAsItSays) {
    const auto of = [](double times, int64_t of_epoch) { return config::StepInterval{1, times, of_epoch}; };
    EXPECT_EQ(chosen(of(4, 10), 20), (Steps{3, 5, 8, 10, 13, 15, 18, 20}));
    EXPECT_EQ(chosen(of(3, 7), 7), (Steps{3, 5, 7}));
    for (const int64_t epoch : {1, 2, 7, 100, 999, 12345})
        for (const int64_t times : {1, 2, 3, 7, 10, 99}) {
            const config::StepInterval interval = of(static_cast<double>(times), epoch);
            for (const int64_t end : {epoch, 3 * epoch}) {
                EXPECT_EQ(interval.count(end), std::min(times, epoch) * (end / epoch)) << times << " of " << epoch;
                EXPECT_TRUE(interval.falls_on(end)) << times << " of " << epoch;
            }
        }
    EXPECT_EQ(chosen(of(0.5, 5), 20), (Steps{10, 20}));
    EXPECT_EQ(chosen(of(0.1, 3), 60), (Steps{30, 60}));
    EXPECT_EQ(chosen(of(1.5, 4), 8), (Steps{3, 6, 8}));
    EXPECT_EQ(of(4, 10).shortest(), 2);
    EXPECT_EQ(of(40, 10).shortest(), 1);
    EXPECT_EQ(chosen({3}, 10), (Steps{3, 6, 9}));
    EXPECT_EQ(chosen({}, 10), Steps{});
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
    for (const char* option : {"eval_steps", "save_steps", "logging_steps"})
        EXPECT_CONTAINS(file_error(cat(R"({"training": {")", option, R"(": 1e30}})")), "and <= 1000000000, found");
    EXPECT_CONTAINS(file_error(R"({"training": {"evals_per_epoch": 2}})"),
                    "training.evals_per_epoch needs data.eval_file");
    EXPECT_TRUE(
        load_text(R"({"data": {"val_size": 2}, "training": {"evals_per_epoch": 1, "load_best_model_at_end": true}})")
            .config.training.load_best_model_at_end);
    EXPECT_TRUE(config::saves_checkpoints(loaded.config.training));
}

}  // namespace
}  // namespace unsloth::testing
