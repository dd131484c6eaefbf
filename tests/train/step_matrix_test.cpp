// The matrix of tests/train/step_matrix.h on the CPU.
#include "train/step_matrix.h"

namespace unsloth {
namespace {

using namespace test;

class StepMatrix : public ::testing::TestWithParam<StepSplit> {};

TEST_P(StepMatrix, SettingsChangeNoBitAndSplitsRoundingAlone) {
    const StepSplit& split = GetParam();
    const StepRun run = expect_settings_change_no_bit(split, "cpu", at::kFloat);
    const StepRun whole = run_ranks({1, 1, split.equal_rows, split.dora, split.hybrid}, {}, "cpu", at::kFloat)[0];
    for (std::size_t i = 0; i < whole.losses.size(); ++i) {
        EXPECT_NEAR(run.losses[i], whole.losses[i], 2e-6) << "step " << i + 1;
        EXPECT_NEAR(run.norms[i], whole.norms[i], 1e-4 * whole.norms[i]) << "step " << i + 1;
    }
    for (const float norm : run.norms) EXPECT_GT(norm, 0.0F);
}

TEST(RowTiles, ChangeRoundingAlone) {
    expect_tiles_change_rounding_alone("cpu", at::kFloat, /*bound=*/5e-6);
    expect_tiles_change_rounding_alone("cpu", at::kFloat, /*bound=*/5e-6, {{.equal_rows = false, .hybrid = true}});
}

// e4m3 has three bits behind the leading one: an input that comes back is off by up to 6 %, 2.6 % on average. The
// forward pass has the inputs themselves, so that the first loss keeps its bits.
TEST(InputsInFp8, ChangeGradientsByLessThanTheirCodes) {
    const spec::LayerPlan input{spec::Keep::input, spec::Place::host};
    const StepRun plain = run_ranks({}, {.layers_name = "full+offload", .layers = {input}}, "cpu", at::kFloat)[0];
    for (const int in_flight : {1, 2})
        for (const spec::Keep keep : {spec::Keep::input, spec::Keep::attention, spec::Keep::everything}) {
            StepSettingsCase settings{.layers_name = "codes", .layers = {{keep, spec::Place::host}}};
            settings.in_flight = in_flight;
            settings.inputs_in_fp8 = true;
            SCOPED_TRACE(cat(spec::name_of(settings.layers[0]), ", ", in_flight, " in flight"));
            const StepSplit split{.micro_batches = in_flight};
            const StepRun run = run_ranks(split, settings, "cpu", at::kFloat)[0];
            expect_counts(run.counts, expected_counts(split, settings));
            EXPECT_NEAR(run.losses[0], plain.losses[0], 2e-6);
            const double distance = gradient_distance(run, plain);
            std::cout << "gradient off by " << distance << "\n";
            EXPECT_GT(distance, 1e-6);
            EXPECT_LT(distance, 0.05);
        }
}

TEST(CodedProducts, ChangeWhatReadsTheirCodes) {
    expect_codes_change_what_reads_them("cpu", at::kFloat);
}

INSTANTIATE_TEST_SUITE_P(Cpu, StepMatrix, ::testing::ValuesIn(step_splits(/*most_ranks=*/2)),
                         [](const auto& info) { return info.param.name(); });

INSTANTIATE_TEST_SUITE_P(Hybrid, StepMatrix,
                         ::testing::Values(StepSplit{.micro_batches = 2, .equal_rows = false, .hybrid = true}),
                         [](const auto& info) { return info.param.name(); });

}  // namespace
}  // namespace unsloth
