// The matrix of tests/train/step_matrix.h on a GPU. Ranks are processes there (tests/e2e/several_gpus_test.py): as
// threads of one process they share NCCL's state, and one that ends takes the others' connections with it.
#include "train/step_matrix.h"

#include "unsloth/ops/coded_rows.h"

namespace unsloth {
namespace {

using namespace test;

class StepMatrixGpu : public ::testing::TestWithParam<StepSplit> {
  protected:
    void SetUp() override {
        if (!device_available("cuda")) GTEST_SKIP() << "no GPU";
    }
};

TEST_P(StepMatrixGpu, SettingsChangeNoBit) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
        SCOPED_TRACE(c10::toString(dtype));
        const StepRun run = expect_settings_change_no_bit(GetParam(), "cuda", dtype);
        for (const float norm : run.norms) EXPECT_GT(norm, 0.0F);
    }
}

TEST_P(StepMatrixGpu, SplitsChangeRoundingAlone) {
    const StepSettingsCase plain;
    const StepSplit& split = GetParam();
    const StepRun run = run_ranks(split, plain, "cuda", at::kFloat)[0];
    const StepRun whole = run_ranks({1, 1, split.equal_rows, split.dora}, plain, "cuda", at::kFloat)[0];
    for (std::size_t i = 0; i < whole.losses.size(); ++i) {
        EXPECT_NEAR(run.losses[i], whole.losses[i], 1e-4 * whole.losses[i]) << "step " << i + 1;
        EXPECT_NEAR(run.norms[i], whole.norms[i], 1e-3 * whole.norms[i]) << "step " << i + 1;
    }
}

TEST(RowTilesGpu, ChangeRoundingAlone) {
    if (!device_available("cuda")) GTEST_SKIP() << "no GPU";
    expect_tiles_change_rounding_alone("cuda", at::kFloat, /*bound=*/2e-3);  // products are TF32-free, sums reorder
}

TEST(InputsInFp8Gpu, GradientsComeFromTheCodes) {
    if (!device_available("cuda")) GTEST_SKIP() << "no GPU";
    StepSettingsCase settings{.layers_name = "full+offload", .layers = {{spec::Keep::input, spec::Place::host}}};
    const StepRun plain = run_ranks({}, settings, "cuda", at::kBFloat16)[0];
    for (const bool records : {false, true}) {
        settings.inputs_in_fp8 = true;
        settings.records = records;
        const StepRun run = run_ranks({}, settings, "cuda", at::kBFloat16)[0];
        EXPECT_EQ(run.losses[0], plain.losses[0]);
        EXPECT_GT(gradient_distance(run, plain), 1e-5);
        EXPECT_LT(gradient_distance(run, plain), 0.05);
    }
}

TEST(Fp8ProductsGpu, ChangeWhatReadsTheirCodes) {
    if (!device_available("cuda")) GTEST_SKIP() << "no GPU";
    if (!ops::coded_available(at::Device(at::kCUDA, 0), spec::Codes::e4m3))
        GTEST_SKIP() << "this card has no such products";
    expect_codes_change_what_reads_them("cuda", at::kBFloat16);
}

std::vector<StepSplit> splits_on_gpus() {
    std::vector<StepSplit> splits = step_splits(/*most_ranks=*/1);
    std::erase_if(splits,
                  [](const StepSplit& split) { return matrix_rows % (split.ranks * split.micro_batches) != 0; });
    return splits;
}

INSTANTIATE_TEST_SUITE_P(Gpu, StepMatrixGpu, ::testing::ValuesIn(splits_on_gpus()),
                         [](const auto& info) { return info.param.name(); });

}  // namespace
}  // namespace unsloth
