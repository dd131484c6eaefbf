// Sweeps: the settings of the axes, and which trials go on.
#include "app/command_line/command_line.h"
#include "app/sweep/axes.h"
#include "app/sweep/halving.h"

#include <cmath>
#include <limits>

#include "tests/config/support.h"

namespace unsloth::testing {
namespace {

const double nan = std::numeric_limits<double>::quiet_NaN();

using Settings = std::vector<std::vector<std::pair<std::string, std::string>>>;

std::vector<std::string> sweep_with(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"sweep", "--model.path", "m", "--data.train_file", "t", "--eval_file", "e"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
}

app::SweepRequest sweep_of(const std::vector<std::string>& more) {
    return app::parse_command_line(sweep_with(more)).sweep;
}

std::string refusal_of(const std::vector<std::string>& more, test::Expected expected = ErrorKind::usage) {
    return usage_message([&] { app::parse_command_line(sweep_with(more)); }, expected);
}

TEST(Halving, EachComparisonIsAtTwiceTheStepsOfTheOneBefore) {
    EXPECT_EQ(app::halving_shares(8), (std::vector<double>{0.125, 0.25, 0.5, 1}));
    EXPECT_EQ(app::halving_shares(2), (std::vector<double>{0.5, 1}));
    EXPECT_EQ(app::halving_shares(3), (std::vector<double>{0.25, 0.5, 1}));
    EXPECT_EQ(app::halving_shares(5), (std::vector<double>{0.125, 0.25, 0.5, 1}));
    EXPECT_EQ(app::halving_shares(16).size(), 5U);
}

TEST(Halving, EightTrialsTakeTheStepsOfTwoAndAHalfRuns) {
    for (const auto& [trials, runs] : {std::pair{8UL, 2.5}, {4UL, 2.0}, {16UL, 3.0}}) {
        double steps = 0, before = 0;
        std::size_t left = trials;
        for (const double share : app::halving_shares(trials)) {
            steps += static_cast<double>(left) * (share - before);
            before = share, left = app::halved(left);
        }
        EXPECT_DOUBLE_EQ(steps, runs) << trials;
    }
}

TEST(Halving, TheBestHalfIsKeptAndNeverOneThatDiverged) {
    using Places = std::vector<std::size_t>;
    EXPECT_EQ(app::kept_places({3, 1, 2, 4}, false), (Places{1, 2}));
    EXPECT_EQ(app::kept_places({3, 1, 2, 4}, true), (Places{0, 3}));
    EXPECT_EQ(app::kept_places({3, 1, 2}, false), (Places{1, 2}));
    EXPECT_EQ(app::kept_places({2, 2, 2, 2}, false), (Places{0, 1}));
    EXPECT_EQ(app::kept_places({nan, 9, nan, nan}, false), (Places{1}));
    EXPECT_EQ(app::kept_places({INFINITY, 9, nan, 8}, false), (Places{1, 3}));
    EXPECT_EQ(app::kept_places({nan, nan}, true), Places{});
}

TEST(SweepAxes, FlagsWithSeveralValuesAndTheGridSayTheSame) {
    const Settings expected = {{{"training.learning_rate", "1e-4"}, {"lora.r", "8"}},
                               {{"training.learning_rate", "1e-4"}, {"lora.r", "16"}},
                               {{"training.learning_rate", "2e-4"}, {"lora.r", "8"}},
                               {{"training.learning_rate", "2e-4"}, {"lora.r", "16"}}};
    const app::SweepRequest flags = sweep_of({"--learning-rate", "1e-4,2e-4", "--lora.r=8,16", "--seed", "7"});
    EXPECT_EQ(app::combinations(flags), expected);
    EXPECT_EQ(flags.arguments, (std::vector<std::string>{"--model.path", "m", "--data.train_file", "t", "--eval_file",
                                                         "e", "--seed", "7"}));
    const app::SweepRequest grid = sweep_of({"--seed", "7", "--grid", "learning_rate = 1e-4, 2e-4; r=8,16"});
    EXPECT_EQ(app::combinations(grid), expected);
    EXPECT_EQ(grid.arguments, flags.arguments);
}

TEST(SweepAxes, ListsKeepTheirCommasInBrackets) {
    const app::SweepRequest lists = sweep_of({"--grid", "target_modules=[q_proj,v_proj],[\"k_proj\"],all-linear"});
    EXPECT_EQ(lists.axes.front().second, (std::vector<std::string>{"q_proj,v_proj", "[\"k_proj\"]", "all-linear"}));
    // A list's own flag is one value.
    const app::SweepRequest one = sweep_of({"--target_modules", "q_proj,v_proj", "--r", "4,8"});
    EXPECT_EQ(one.axes.size(), 1U);
    EXPECT_EQ(one.arguments.back(), "q_proj,v_proj");
}

TEST(SweepAxes, OwnOptionsAreNotTheTrials) {
    const app::SweepRequest request =
        sweep_of({"--find-lr", "--steps", "20", "--nproc_per_node=2", "--max_seq_length", "64"});
    EXPECT_TRUE(request.find_lr);
    EXPECT_EQ(request.steps, 20);
    EXPECT_EQ(request.nproc_per_node, 2);
    EXPECT_EQ(request.arguments.size(), 8U);
    EXPECT_EQ(request.arguments.back(), "64");
}

TEST(SweepAxes, WhatCannotBeComparedIsRefused) {
    const auto refused = [](const std::string& grid, const std::string& part, test::Expected expected) {
        const std::string message = refusal_of({"--grid", grid}, expected);
        EXPECT_NE(message.find(part), std::string::npos) << grid << ": " << message;
    };
    refused("learning_rate=1e-4", "is no axis", "sweep.bad-axis");
    refused("learning_rate=1e-4,0.0001", "twice", "sweep.bad-axis");
    refused("seed=1,2,3,4,5;r=1,2,3,4", "20 settings", "sweep.bad-axis");
    refused("max_seq_length=64,128", "it changes the model", "sweep.bad-axis");
    refused("data.format=alpaca,text", "it changes the data", "sweep.bad-axis");
    refused("max_steps=10,20", "take the same steps", "sweep.bad-axis");
    refused("beta=0.1,0.2", "it changes the loss", "sweep.bad-axis");
    refused("finetuning_type=lora,full", "measured on", "sweep.bad-axis");
    refused("learning_rat=1,2", "learning_rate", "option.unknown");
    refused("learning_rate", "OPTION=VALUE", "option.invalid-value");
    refused("learning_rate=1e-4,fast", "fast", "option.invalid-value");
    refused("learning_rate=1e-4,7", "7", "option.invalid-value");
    refused("r=8,16;lora.r=4,2", "given twice", "option.conflict");
    EXPECT_NE(refusal_of({"--seed", "3", "--grid", "seed=1,2"}, "option.conflict").find("twice"), std::string::npos);
    EXPECT_NE(refusal_of({}, "option.missing").find("--find_lr"), std::string::npos);
    refusal_of({"--find_lr", "--r", "4,8"}, "option.unsupported");
}

TEST(SweepAxes, HeldOutRowsAreNeededAndTheSameForAll) {
    const std::vector<std::string> rates = {"--learning_rate", "1e-4,2e-4"};
    std::vector<std::string> without = {"sweep", "--model.path", "m", "--data.train_file", "t"};
    without.insert(without.end(), rates.begin(), rates.end());
    const std::string message = usage_message([&] { app::parse_command_line(without); }, "option.missing");
    EXPECT_NE(message.find("data.val_size"), std::string::npos) << message;
    without.insert(without.end(), {"--val_size", "4", "--seed", "1,2"});
    usage_message([&] { app::parse_command_line(without); }, "sweep.bad-axis");
}

}  // namespace
}  // namespace unsloth::testing
