// The matrix of tests/train/step_matrix.h on the CPU.
#include "train/step_matrix.h"

namespace unsloth {
namespace {

using namespace test;

class StepMatrix : public ::testing::TestWithParam<StepSplit> {};

TEST_P(StepMatrix, SettingsChangeNoBitAndSplitsRoundingAlone) {
    const StepSplit& split = GetParam();
    const StepRun run = expect_settings_change_no_bit(split, "cpu", at::kFloat);
    const StepRun whole = run_ranks({1, 1, split.equal_rows, split.dora}, {}, "cpu", at::kFloat)[0];
    for (std::size_t i = 0; i < whole.losses.size(); ++i) {
        EXPECT_NEAR(run.losses[i], whole.losses[i], 2e-6) << "step " << i + 1;
        EXPECT_NEAR(run.norms[i], whole.norms[i], 1e-4 * whole.norms[i]) << "step " << i + 1;
    }
    for (const float norm : run.norms) EXPECT_GT(norm, 0.0F);
}

INSTANTIATE_TEST_SUITE_P(Cpu, StepMatrix, ::testing::ValuesIn(step_splits(/*most_ranks=*/2)),
                         [](const auto& info) { return info.param.name(); });

}  // namespace
}  // namespace unsloth
