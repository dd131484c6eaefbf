// What a run says of its time: where it went, and how much is left.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <sstream>

#include "train/support.h"
#include "unsloth/train/run_record.h"

namespace unsloth {
namespace {

using namespace test;

class TimingTest : public ::testing::TestWithParam<std::string> {
  protected:
    void SetUp() override { UNSLOTH_NEEDS_XZ(); }
    ScratchFolder folder;
};

std::vector<Row> equal_rows(int count) {
    std::vector<Row> rows(static_cast<std::size_t>(count));
    for (int r = 0; r < count; ++r) {
        for (int t = 0; t < 64; ++t) rows[static_cast<std::size_t>(r)].ids.push_back((r * 31 + t * 7) % 250);
        rows[static_cast<std::size_t>(r)].labels = rows[static_cast<std::size_t>(r)].ids;
    }
    return rows;
}

/// What a run wrote of its time, and what the clock says beside it.
struct TimedRun {
    std::vector<double> steps;
    int evaluations = 0;
    nlohmann::json summary;
    double elsewhere = 0;  ///< of the clock: neither evaluations, nor saves, nor loading

    explicit TimedRun(const config::LoadedConfig& config) {
        train::Trainer trainer(config);
        const auto start = std::chrono::steady_clock::now();
        trainer.run();
        elsewhere = train::seconds_since(start);
        std::istringstream lines(read_file(fs::path(config.config.training.output_dir) / "metrics.jsonl"));
        for (std::string line; std::getline(lines, line);) {
            summary = nlohmann::json::parse(line);
            if (summary.contains("step_ms")) steps.push_back(summary["step_ms"].get<double>() / 1000);
            evaluations += summary.contains("eval_loss") ? 1 : 0;
        }
        for (const char* part : {"eval_seconds", "save_seconds", "load_seconds"})
            elsewhere -= summary[part].get<double>();
    }
    double step_seconds() const { return std::accumulate(steps.begin(), steps.end(), 0.0); }
};

TEST_P(TimingTest, StepsEvaluationsAndSavesAddUpToTheClock) {
    const bool cuda = GetParam() == "cuda";
    write_rows(folder / "rows.jsonl", equal_rows(64));
    write_rows(folder / "eval.jsonl", equal_rows(16));
    const Flags flags = {"--model.path",
                         model_folder("small_llama/nf4_dq").string(),
                         "--data.train_file",
                         (folder / "rows.jsonl").string(),
                         "--data.eval_file",
                         (folder / "eval.jsonl").string(),
                         "--training.output_dir",
                         (folder / "out").string(),
                         "--training.overwrite_output_dir",
                         "true",
                         "--hardware.device",
                         GetParam(),
                         "--training.per_device_train_batch_size",
                         cuda ? "8" : "2",
                         "--training.gradient_accumulation_steps",
                         cuda ? "4" : "1",
                         "--training.eval_steps",
                         cuda ? "120" : "12",
                         "--training.save_steps",
                         cuda ? "150" : "15"};
    const auto timed = [&](const char* steps) {
        return TimedRun(make_config(flags + Flags{"--training.max_steps", steps}));
    };
    // What a run takes before its first step and after its last one.
    const TimedRun one = timed("1");
    const double around = one.elsewhere - one.step_seconds();
    TimedRun run = timed(cuda ? "600" : "60");
    const auto unaccounted = [&] { return std::abs(run.elsewhere - around - run.step_seconds()); };
    const auto allowed = [&] { return 0.01 * (run.elsewhere - around) + (cuda ? 0 : 0.05); };
    // Others that use the CPU delay a run between its steps, but not each time: what a run forgets, every run lacks.
    for (int again = 0; again < 4 && unaccounted() > allowed(); ++again) run = timed(cuda ? "600" : "60");

    ASSERT_EQ(run.summary["event"], "summary");
    EXPECT_EQ(run.summary["exit_reason"], "finished");
    EXPECT_EQ(run.steps.size(), run.summary["steps"].get<std::size_t>());
    EXPECT_EQ(run.evaluations, 5);
    EXPECT_GT(run.summary["save_seconds"].get<double>(), 0);
    EXPECT_GT(run.summary["eval_seconds"].get<double>(), 0);
    EXPECT_NEAR(run.summary["train_seconds"].get<double>(), run.step_seconds(), 1e-6);
    const double trained = run.elsewhere - around;
    EXPECT_LE(unaccounted(), allowed());
    // All rows are alike: no step is done in a fraction of the usual time, the last ones before a pause neither.
    std::vector<double> sorted = run.steps;
    std::sort(sorted.begin(), sorted.end());
    const double median = sorted[sorted.size() / 2];
    EXPECT_GT(sorted.front(), (cuda ? 0.3 : 0.05) * median);
    std::cout << "steps " << run.step_seconds() << " s, the clock " << trained << " s, around them " << around
              << " s; median " << median << " s, shortest " << sorted.front() << " s, longest " << sorted.back()
              << " s\n";
}

INSTANTIATE_TEST_SUITE_P(All, TimingTest, ::testing::ValuesIn(test_devices()),
                         [](const auto& param) { return param.param; });

TEST(LossMean, LeavesOutWhatIsNotFinite) {
    formats::LossMean mean;
    EXPECT_EQ(mean.mean(), std::nullopt);
    mean.add(1);
    mean.add(std::numeric_limits<double>::infinity());
    mean.add(4);
    EXPECT_EQ(mean.mean(), 2.5);
}

TEST(TimeLeft, CountsStepsEvaluationsAndSaves) {
    train::TimeLeft left({.total_steps = 10, .eval = {3}, .save = {5}, .eval_tokens = 300});
    left.stepped(2, 100);
    // Three evaluations on the way and one at the end, each half of what 300 tokens would take to train on.
    EXPECT_DOUBLE_EQ(left.after(1), 9 * 2 + 4 * 3.0);
    left.evaluated(7);
    left.saved(0.5);
    EXPECT_DOUBLE_EQ(left.after(3), 7 * 2 + 4 * 7 + 2 * 0.5);  // the evaluation after step 3 is still to come
    EXPECT_DOUBLE_EQ(left.after(4), 6 * 2 + 3 * 7 + 2 * 0.5);
    EXPECT_DOUBLE_EQ(left.after(10), 7 + 0.5);
}

TEST(TimeLeft, WithoutEvaluationsAndByTheClock) {
    train::TimeLeft left({.total_steps = 100, .save_minutes = 1});
    left.stepped(6, 10);
    EXPECT_DOUBLE_EQ(left.after(50), 300);
    left.saved(2);
    EXPECT_DOUBLE_EQ(left.after(50), 300 + 6 * 2);
}

TEST(TimeLeft, ASlowFirstStepFades) {
    train::TimeLeft left({.total_steps = 121});
    left.stepped(20, 10);
    EXPECT_DOUBLE_EQ(left.after(1), 120 * 20);
    for (int i = 0; i < 20; ++i) left.stepped(1, 10);
    EXPECT_LT(left.after(21), 130);
}

}  // namespace
}  // namespace unsloth
