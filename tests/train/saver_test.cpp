// What must not end a run, or lead it astray: a full disk, no pinned memory, an evaluation that is not a number.
#include <fcntl.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>

#include "train/support.h"
#include "unsloth/train/checkpoint.h"

namespace unsloth {
namespace {

using namespace test;

/// No file grows beyond `bytes`: for the writes of this process, a disk that is full, until the end of the scope.
class FullDisk {
  public:
    explicit FullDisk(rlim_t bytes) {
        handler_ = std::signal(SIGXFSZ, SIG_IGN);
        ::getrlimit(RLIMIT_FSIZE, &before_);
        const rlimit now{bytes, before_.rlim_max};
        ::setrlimit(RLIMIT_FSIZE, &now);
    }
    ~FullDisk() {
        ::setrlimit(RLIMIT_FSIZE, &before_);
        std::signal(SIGXFSZ, handler_);
    }
    FullDisk(const FullDisk&) = delete;
    FullDisk& operator=(const FullDisk&) = delete;

  private:
    rlimit before_{};
    void (*handler_)(int) = nullptr;
};

train::StepReport step_report(int64_t step) {
    train::StepReport report;
    report.step = step;
    report.total_steps = 9;
    report.loss = 1.0 / static_cast<double>(step);
    return report;
}

std::vector<int64_t> steps_in(const fs::path& path) {
    std::vector<int64_t> steps;
    std::istringstream lines(read_file(path));
    for (std::string line; std::getline(lines, line);) steps.push_back(nlohmann::json::parse(line)["step"]);
    return steps;
}

std::unique_ptr<train::Observer> metrics_in(const fs::path& path) {
    config::Config config;
    config.training.output_dir = path.parent_path();
    config.logging.metrics_file = path.filename();
    return train::make_metrics(config, 0, "");
}

TEST(MetricsFile, RowsWaitWhileTheDiskIsFull) {
    const ScratchFolder folder;
    const fs::path path = folder / "metrics.jsonl", whole = folder / "whole.jsonl";
    log::set_level(log::Level::off);
    {
        const auto metrics = metrics_in(path), reference = metrics_in(whole);
        for (int64_t step = 1; step <= 6; ++step) reference->on_step(step_report(step));
        metrics->on_step(step_report(1));
        const auto one_row = static_cast<rlim_t>(fs::file_size(path));
        {
            const FullDisk disk(one_row + one_row / 2);  // the second row fits by half
            for (int64_t step = 2; step <= 5; ++step) EXPECT_NO_THROW(metrics->on_step(step_report(step)));
            EXPECT_EQ(fs::file_size(path), one_row + one_row / 2);
        }
        metrics->on_step(step_report(6));
        EXPECT_EQ(steps_in(path), (std::vector<int64_t>{1, 2, 3, 4, 5, 6})) << "as soon as there is room again";
    }
    EXPECT_EQ(read_file(path), read_file(whole));
}

TEST(MetricsFile, TheLastRowsAreTriedOnceMoreAtTheEnd) {
    const ScratchFolder folder;
    const fs::path path = folder / "metrics.jsonl";
    log::set_level(log::Level::off);
    auto metrics = metrics_in(path);
    {
        const FullDisk disk(1);
        metrics->on_step(step_report(1));
    }
    metrics.reset();
    EXPECT_EQ(steps_in(path), std::vector<int64_t>{1});
}

TEST(BestEvaluation, IsNeverOneThatIsNotFinite) {
    formats::BestEvaluation best;
    const auto observe = [&](int64_t step, double loss) { return best.observe(step, loss, /*more_is_better=*/false); };
    EXPECT_EQ(observe(1, std::nan("")), 0);
    EXPECT_FALSE(best.value);
    EXPECT_EQ(observe(2, 3.0), std::numeric_limits<double>::infinity());
    EXPECT_EQ(best.step, 2);
    EXPECT_EQ(observe(3, std::nan("")), 0);
    EXPECT_EQ(observe(4, -std::numeric_limits<double>::infinity()), 0);
    EXPECT_EQ(observe(5, 3.0), 0);
    EXPECT_EQ(best.step, 2);
    EXPECT_EQ(observe(6, 2.5), 0.5);
    EXPECT_EQ(best.step, 6);
    EXPECT_EQ(best.value, 2.5);
}

TEST(BestEvaluation, MayBeTheOneOfMost) {
    formats::BestEvaluation best;
    best.observe(1, 0.5, /*more_is_better=*/true);
    EXPECT_EQ(best.observe(2, 0.25, true), 0);
    EXPECT_EQ(best.observe(3, 0.75, true), 0.25);
    EXPECT_EQ(best.step, 3);
}

// Without a GPU there is no pinned memory at all, which is the failure that is meant.
TEST(Snapshot, TakesOrdinaryMemoryWhereNoneIsPageLocked) {
    log::set_level(log::Level::off);
    ops::AdamwState state;
    state.params_P = at::rand({1000});
    state.m32 = at::rand({1000});
    const train::Snapshot snapshot(state, at::Device(at::kCUDA, 0));
    ASSERT_EQ(snapshot.tensors().size(), 2U);
    for (const auto& [name, copy] : snapshot.tensors()) {
        EXPECT_EQ(copy.numel(), 1000) << name;
        EXPECT_TRUE(copy.device().is_cpu()) << name;
        EXPECT_EQ(copy.is_pinned(), at::hasCUDA() && at::detail::getCUDAHooks().deviceCount() > 0) << name;
    }
    snapshot.at("m32").copy_(state.m32);
    EXPECT_TRUE(same_bits(snapshot.at("m32"), state.m32));
}

}  // namespace
}  // namespace unsloth
