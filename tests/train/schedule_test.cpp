// Schedules against transformers' multipliers, their arguments, and the plateau's state machine.
#include "unsloth/train/schedule.h"
#include "common/files.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"

namespace unsloth {
namespace {

using Kwargs = std::vector<std::pair<std::string, std::string>>;

const std::map<std::string, config::Schedule> names = {
    {"linear", config::Schedule::linear},
    {"cosine", config::Schedule::cosine},
    {"cosine_with_restarts", config::Schedule::cosine_with_restarts},
    {"polynomial", config::Schedule::polynomial},
    {"constant", config::Schedule::constant},
    {"constant_with_warmup", config::Schedule::constant_with_warmup},
    {"inverse_sqrt", config::Schedule::inverse_sqrt},
    {"cosine_with_min_lr", config::Schedule::cosine_with_min_lr},
    {"cosine_warmup_with_min_lr", config::Schedule::cosine_warmup_with_min_lr},
    {"warmup_stable_decay", config::Schedule::warmup_stable_decay}};

config::TrainingOptions training_of(config::Schedule schedule, Kwargs kwargs = {}, int64_t warmup_steps = 0) {
    config::TrainingOptions training;
    training.lr_scheduler_type = schedule;
    training.lr_scheduler_kwargs = std::move(kwargs);
    training.warmup_steps = warmup_steps;
    training.learning_rate = 2e-4;
    return training;
}

TEST(Schedule, EqualsTransformers) {
    const auto golden = nlohmann::json::parse(std::ifstream(test::golden("schedules/schedules.json")));
    std::map<std::string, int> seen;
    for (const auto& entry : golden["entries"]) {
        const std::string name = entry["schedule"];
        Kwargs kwargs;
        for (const auto& [key, value] : entry["options"].items())
            kwargs.emplace_back(key, value.is_string() ? value.get<std::string>() : value.dump());
        config::TrainingOptions training = training_of(names.at(name), kwargs, entry["warmup"]);
        training.learning_rate = golden["base_lr"];
        const config::ScheduleOptions options = config::schedule_options(training, entry["total"]);
        std::vector<int64_t> steps = entry["steps"];
        if (steps.size() == 3) {
            const int64_t last = steps[1];
            steps.clear();
            for (int64_t step = 0; step <= last; ++step) steps.push_back(step);
        }
        const std::vector<double> expected = entry["multiplier"];
        ASSERT_EQ(steps.size(), expected.size());
        for (std::size_t i = 0; i < steps.size(); ++i)
            ASSERT_NEAR(train::schedule_multiplier(names.at(name), options, steps[i]), expected[i], 1e-12)
                << entry["options"] << " " << name << " " << steps[i];
        ++seen[name];
    }
    EXPECT_EQ(seen.size(), names.size()) << "a schedule without reference values";
}

TEST(Schedule, WarmupFromStepsOrRatio) {
    config::TrainingOptions training = training_of(config::Schedule::linear);
    training.warmup_ratio = 0.03;
    EXPECT_EQ(config::warmup_steps_of(training, 1000), 30);
    EXPECT_EQ(config::warmup_steps_of(training, 1001), 31);  // rounded up
    EXPECT_EQ(config::warmup_steps_of(training, 0), 0);
    training.warmup_steps = 7;
    EXPECT_EQ(config::warmup_steps_of(training, 1000), 7);
    EXPECT_EQ(config::schedule_options(training, 1000).warmup_steps, 7);
}

TEST(Schedule, AbsoluteMinimumIsAShareOfTheBase) {
    const config::ScheduleOptions options =
        config::schedule_options(training_of(config::Schedule::cosine_with_min_lr, {{"min_lr", "2e-5"}}), 100);
    EXPECT_NEAR(train::schedule_multiplier(config::Schedule::cosine_with_min_lr, options, 100), 0.1, 1e-12);
}

TEST(Schedule, StableStepsGivenWin) {
    const config::ScheduleOptions options = config::schedule_options(
        training_of(config::Schedule::warmup_stable_decay, {{"num_decay_steps", "10"}, {"num_stable_steps", "20"}}),
        100);
    EXPECT_EQ(train::schedule_multiplier(config::Schedule::warmup_stable_decay, options, 19), 1.0);
    EXPECT_NEAR(train::schedule_multiplier(config::Schedule::warmup_stable_decay, options, 25), 0.5, 1e-12);
    EXPECT_EQ(train::schedule_multiplier(config::Schedule::warmup_stable_decay, options, 31), 0.0);
}

TEST(Schedule, StaysFiniteAndWithinBoundsEverywhere) {
    for (const auto& [name, schedule] : names) {
        for (const int64_t total : {0, 1, 2, 10}) {
            for (const int64_t warmup : {0, 1, 2, 10, 20}) {
                Kwargs kwargs;
                if (schedule == config::Schedule::warmup_stable_decay) kwargs = {{"num_decay_steps", "3"}};
                if (name.ends_with("min_lr")) kwargs = {{"min_lr_rate", "0.1"}};
                const config::ScheduleOptions options =
                    config::schedule_options(training_of(schedule, kwargs, warmup), total);
                for (int64_t step = 0; step <= total + 2; ++step) {
                    const double multiplier = train::schedule_multiplier(schedule, options, step);
                    EXPECT_TRUE(multiplier >= 0 && multiplier <= 1)
                        << name << " " << total << " " << warmup << " " << step << " " << multiplier;
                }
            }
        }
    }
}

/// The message of the usage error that parsing raises; "" if it raises none.
std::string refusal(config::Schedule schedule, const Kwargs& kwargs) {
    try {
        config::schedule_options(training_of(schedule, kwargs), 100);
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage);
        return error.what();
    }
    return "";
}

TEST(Schedule, ArgumentsOfWhichNoRateFollowsAreRefused) {
    for (const auto& [name, schedule] : names)
        for (const char* key :
             {"num_cycles", "power", "lr_end", "min_lr", "min_lr_rate", "timescale", "min_lr_ratio", "warmup_lr_rate"})
            for (const char* value : {"-1e300", "-1", "0", "5e-324", "1e9", "1e300", "1.7e308"}) {
                Kwargs kwargs = {{key, value}};
                if (schedule == config::Schedule::warmup_stable_decay) kwargs.emplace_back("num_decay_steps", "3");
                if (name.ends_with("min_lr") && !std::string(key).starts_with("min_lr"))
                    kwargs.emplace_back("min_lr_rate", "0.1");
                if (refusal(schedule, kwargs) != "") continue;
                const config::ScheduleOptions options = config::schedule_options(training_of(schedule, kwargs, 2), 10);
                for (int64_t step = 0; step <= 10; ++step) {
                    const double rate = 2e-4 * train::schedule_multiplier(schedule, options, step);
                    EXPECT_TRUE(std::isfinite(rate) && rate >= 0) << name << " " << key << " " << value << " " << rate;
                }
            }
    EXPECT_NE(refusal(config::Schedule::polynomial, {{"lr_end", "-1e-5"}}).find("from 0"), std::string::npos);
    EXPECT_NE(refusal(config::Schedule::polynomial, {{"power", "-200"}}).find("from 0"), std::string::npos);
    EXPECT_NE(refusal(config::Schedule::cosine, {{"num_cycles", "1e308"}}).find("from 0"), std::string::npos);
}

TEST(Schedule, RefusesWhatAScheduleDoesNotHave) {
    EXPECT_EQ(refusal(config::Schedule::cosine, {{"num_cycles", "1.5"}}), "");
    EXPECT_EQ(refusal(config::Schedule::warmup_stable_decay,
                      {{"num_decay_steps", "10"}, {"decay_type", "1-sqrt"}, {"num_stable_steps", "null"}}),
              "");
    const std::string unknown = refusal(config::Schedule::cosine, {{"num_cycle", "1.5"}});
    EXPECT_NE(unknown.find("num_cycle"), std::string::npos);
    EXPECT_NE(unknown.find("It takes: num_cycles."), std::string::npos) << unknown;
    EXPECT_NE(refusal(config::Schedule::linear, {{"power", "2"}}).find("takes no arguments"), std::string::npos);
    EXPECT_NE(refusal(config::Schedule::polynomial, {{"power", "two"}}).find("a number"), std::string::npos);
    EXPECT_NE(refusal(config::Schedule::polynomial, {{"power", "2x"}}), "");
    EXPECT_NE(refusal(config::Schedule::polynomial, {{"lr_end", "0.01"}}).find("lr_end"), std::string::npos);
    EXPECT_NE(refusal(config::Schedule::cosine_with_restarts, {{"num_cycles", "1.5"}}).find("whole number"),
              std::string::npos);
    EXPECT_NE(refusal(config::Schedule::cosine_with_min_lr, {}).find("neither"), std::string::npos);
    EXPECT_NE(refusal(config::Schedule::cosine_with_min_lr, {{"min_lr", "1e-5"}, {"min_lr_rate", "0.1"}}).find("both"),
              std::string::npos);
    EXPECT_NE(refusal(config::Schedule::warmup_stable_decay, {}).find("num_decay_steps"), std::string::npos);
    EXPECT_NE(refusal(config::Schedule::warmup_stable_decay, {{"num_decay_steps", "10"}, {"decay_type", "sqrt"}})
                  .find("linear | cosine | 1-sqrt"),
              std::string::npos);
    EXPECT_NE(refusal(config::Schedule::inverse_sqrt, {{"timescale", "0"}}), "");
    EXPECT_NE(refusal(config::Schedule::reduce_lr_on_plateau, {{"factor", "1"}}), "");
}

/// Values worked out with torch.optim.lr_scheduler.ReduceLROnPlateau.
TEST(PlateauSchedule, FallsWhenTheMetricStopsImproving) {
    const Kwargs kwargs = {{"factor", "0.5"}, {"patience", "1"}, {"cooldown", "1"}, {"min_lr", "3e-5"}};
    train::PlateauSchedule plateau(
        config::schedule_options(training_of(config::Schedule::reduce_lr_on_plateau, kwargs), 100));
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const std::vector<std::pair<double, double>> course = {
        {3.0, 2e-4}, {2.0, 2e-4}, {1.9999, 2e-4},
        {2.1, 1e-4},                            // within the relative threshold: no improvement; then patience is over
        {2.2, 1e-4}, {2.2, 1e-4}, {2.2, 5e-5},  // one evaluation of cooldown, then two bad ones
        {1.0, 5e-5}, {nan, 5e-5}, {nan, 3e-5},  // a NaN is bad; the floor holds
        {0.9, 3e-5}, {1.0, 3e-5}, {1.0, 3e-5},
        {1.0, 3e-5}};
    for (std::size_t i = 0; i < course.size(); ++i) {
        plateau.observe(course[i].first);
        EXPECT_DOUBLE_EQ(plateau.learning_rate(), course[i].second) << i;
    }
}

TEST(PlateauSchedule, ModeMaxAndAbsoluteThreshold) {
    const Kwargs kwargs = {{"mode", "max"}, {"patience", "0"}, {"threshold", "0.5"}, {"threshold_mode", "abs"}};
    train::PlateauSchedule plateau(
        config::schedule_options(training_of(config::Schedule::reduce_lr_on_plateau, kwargs), 100));
    plateau.observe(1.0);
    plateau.observe(1.6);
    EXPECT_DOUBLE_EQ(plateau.learning_rate(), 2e-4);
    plateau.observe(2.1);  // not by more than 0.5
    EXPECT_DOUBLE_EQ(plateau.learning_rate(), 2e-5);
}

TEST(PlateauSchedule, ContinuesFromItsState) {
    const config::ScheduleOptions options = config::schedule_options(
        training_of(config::Schedule::reduce_lr_on_plateau, {{"patience", "2"}, {"cooldown", "2"}}), 100);
    train::PlateauSchedule whole(options);
    for (int i = 0; i < 20; ++i) {
        train::PlateauSchedule resumed(options);
        resumed.restore(whole.state());
        const double metric = i < 3 ? 1.0 / (i + 1) : 1.0;
        whole.observe(metric);
        resumed.observe(metric);
        EXPECT_EQ(resumed.learning_rate(), whole.learning_rate());
        EXPECT_EQ(resumed.state().bad_evaluations, whole.state().bad_evaluations);
    }
    EXPECT_LT(whole.learning_rate(), 2e-5);
}

}  // namespace
}  // namespace unsloth
