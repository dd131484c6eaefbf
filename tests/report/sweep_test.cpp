// A sweep's record: as JSON and back, as a table, and on the page of the run that won.
#include "unsloth/report/sweep.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "common/errors.h"
#include "common/files.h"
#include "unsloth/report/page.h"

namespace unsloth::report {
namespace {

Sweep example() {
    Sweep sweep;
    sweep.shares = {0.25, 0.5, 1};
    sweep.total_steps = 10;
    sweep.options = R"({"training.seed":3407})";
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const std::vector<std::vector<SweepScore>> scores = {{{3, 2.5, 1, false}},
                                                         {{3, 2.25, 1, true}, {5, 2, 1, true}},
                                                         {{3, nan, 1, false}},
                                                         {{3, 2.4, 1, true}, {5, 2.1, 1, false}}};
    for (std::size_t i = 0; i < scores.size(); ++i)
        sweep.trials.push_back({static_cast<int>(i) + 1, {{"training.learning_rate", cat("1e-", 5 - i)}}, scores[i]});
    return sweep;
}

TEST(SweepRecord, ReadsAsItWasWritten) {
    const test::ScratchFolder folder;
    EXPECT_FALSE(read_sweep(folder.path()));
    Sweep sweep = example();
    sweep.best = 2, sweep.command = "unsloth-train train", sweep.reason = "a reason";
    folder.write(sweep_file, sweep_json(sweep));
    const std::optional<Sweep> read = read_sweep(folder.path());
    ASSERT_TRUE(read);
    EXPECT_EQ(sweep_json(*read), sweep_json(sweep));
    EXPECT_EQ(read->winner()->number, 2);
    EXPECT_TRUE(read->trials[2].diverged());
    EXPECT_FALSE(read->trials[3].alive());
    EXPECT_DOUBLE_EQ(read->seconds(), 6);
}

TEST(SweepRecord, AnotherFileIsRefused) {
    const test::ScratchFolder folder;
    for (const char* text : {"", "[]", "{}", R"({"kind": 3})"}) {
        folder.write(sweep_file, text);
        EXPECT_THROW(read_sweep(folder.path()), Error) << text;
    }
    Sweep sweep = example();
    sweep.best = 2;
    std::string text = sweep_json(sweep);
    text.replace(text.find("\"trial\": 2"), 10, "\"trial\": 9");
    folder.write(sweep_file, text);
    EXPECT_THROW(read_sweep(folder.path()), Error);
}

TEST(SweepTable, SaysOfEachTrialWhatBecameOfIt) {
    Sweep sweep = example();
    EXPECT_EQ(sweep_table(sweep),
              "eval_loss\n"
              "  trial  learning_rate  step 3  step 5  step 10\n"
              "      1           1e-5  2.5000                   dropped at step 3\n"
              "      2           1e-4  2.2500  2.0000           kept\n"
              "      3           1e-3       -                   diverged at step 3\n"
              "      4           1e-2  2.4000  2.1000           dropped at step 5\n");
    sweep.best = 2;
    sweep.trials[1].scores.push_back({10, 1.5, 1, true});
    EXPECT_NE(sweep_table(sweep).find("1.5000  best"), std::string::npos) << sweep_table(sweep);
    EXPECT_NE(sweep_table_html(sweep).find("<td><b>1e-4</b></td>"), std::string::npos);
}

TEST(SweepPage, ShowsTheTrialsOfTheRunThatWon) {
    const test::ScratchFolder folder;
    folder.write("metrics.jsonl", R"({"step": 10, "loss": 2.0})"
                                  "\n");
    const auto trials = [&] {
        const std::string text = page(read_run(folder.path()), 0);
        return std::pair{text.find("id=\"trials\"") != std::string::npos, text.find("Sweep: ") != std::string::npos};
    };
    EXPECT_EQ(trials(), (std::pair{false, false}));
    folder.write(sweep_file, sweep_json(example()));
    EXPECT_EQ(trials(), (std::pair{true, true}));
}

}  // namespace
}  // namespace unsloth::report
