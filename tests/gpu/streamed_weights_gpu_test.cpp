// Weights in page-locked host memory that are copied ahead of use, on a GPU: the runs of tests/train/streamed_weights.h
// with and without recorded passes.
#include "train/streamed_weights.h"
#include "unsloth/ops/device.h"
#include "unsloth/placement/memory_use.h"

namespace unsloth {
namespace {

using namespace test;

class StreamedWeightsGpu : public ::testing::TestWithParam<Base> {
  protected:
    void SetUp() override {
        if (!device_available("cuda")) GTEST_SKIP() << "no GPU";
    }
};

TEST_P(StreamedWeightsGpu, ChangeNoBit) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
        SCOPED_TRACE(c10::toString(dtype));
        expect_streaming_changes_no_bit(GetParam(), "cuda", dtype);
    }
}

TEST_P(StreamedWeightsGpu, GenerateTheSame) {
    expect_generation_from_anywhere(GetParam(), "cuda", at::kBFloat16);
}

/// model.device_map auto within so little memory that some, or all, layers must leave it.
TEST(StreamedWeightsChoiceGpu, TakesAsFewLayersOffTheDeviceAsItMust) {
    if (!device_available("cuda")) GTEST_SKIP() << "no GPU";
    model::LoadRequest request;
    request.device = ops::choose_device("cuda");
    request.dtype = at::kBFloat16;
    request.lora.emplace().target_modules = {"q_proj", "down_proj"};
    request.trains = true;
    request.sizes.tokens = request.sizes.longest = request.sizes.head_rows = 16;
    request.sizes.segments = 1;
    model::ModelPlan plan(
        std::make_shared<const formats::WeightFile>(formats::WeightFile::open(matrix_model().string())), request);
    const auto moved = [&](std::size_t layers) {
        spec::RunPlan run = request.run;
        run.layers.assign(matrix_layers, {spec::Keep::input, spec::Place::host});
        for (std::size_t i = matrix_layers - layers; i < matrix_layers; ++i)
            run.layers[i].weights_at = spec::Place::host;
        return run;
    };
    // What a layer keeps is asked for: left to the program, it may move more layers so that others keep more.
    config::Config config;
    config.training.gradient_checkpointing = config::GradientCheckpointing::full_offload;
    config.hardware.weight_cache = config::WeightCache::off;
    const auto choose = [&](int64_t device, int64_t host) {
        config.model.max_memory = {{cat(static_cast<int>(request.device.index())), cat(device)}, {"cpu", cat(host)}};
        placement::choose_memory_use(config, plan);
        return plan.request().run;
    };
    const int64_t plenty = int64_t{1} << 30;
    EXPECT_EQ(choose(plenty, plenty).layers[5].weights_at, spec::Place::device);
    for (const std::size_t layers : {4, 5, 6}) {
        const int64_t enough = plan.estimate(moved(layers)).device;
        ASSERT_GT(plan.estimate(moved(layers - 1)).device, enough);
        const spec::RunPlan chosen = choose(enough, plenty);
        EXPECT_LE(plan.estimate(chosen).device, enough);
        EXPECT_EQ(std::count_if(chosen.layers.begin(), chosen.layers.end(),
                                [](const spec::LayerPlan& layer) { return layer.weights_at == spec::Place::host; }),
                  static_cast<std::ptrdiff_t>(layers));
    }
    EXPECT_EQ(choose(1 << 20, plenty).layers, moved(0).layers) << "nothing fits: require_memory says what";
}

INSTANTIATE_TEST_SUITE_P(Gpu, StreamedWeightsGpu, ::testing::ValuesIn(all_bases),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace unsloth
