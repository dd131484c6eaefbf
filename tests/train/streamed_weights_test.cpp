// Weights that are copied ahead of use, on the CPU.
#include "train/streamed_weights.h"

namespace unsloth {
namespace {

using namespace test;

class StreamedWeights : public ::testing::TestWithParam<Base> {};

TEST_P(StreamedWeights, ChangeNoBit) {
    expect_streaming_changes_no_bit(GetParam(), "cpu", at::kFloat);
}

TEST_P(StreamedWeights, GenerateTheSame) {
    expect_generation_from_anywhere(GetParam(), "cpu", at::kFloat);
}

TEST_P(StreamedWeights, TakeHostMemoryAndTwoSlotsInsteadOfTheDevices) {
    const auto file =
        std::make_shared<const formats::WeightFile>(formats::WeightFile::open(base_folder(GetParam()).string()));
    model::LoadRequest request;
    request.load_in_4bit = GetParam() == Base::nf4_on_the_way_in;
    if (GetParam() == Base::mixed) request.precision = mixed_precision();
    request.sizes.tokens = request.sizes.longest = request.sizes.head_rows = 16;
    request.sizes.segments = 1;
    request.sizes.training = false;
    const auto bytes = [](const memory::Plan& plan, const std::string& group) {
        int64_t sum = 0;
        for (const memory::Entry& entry : plan.entries()) sum += entry.group == group ? entry.bytes : 0;
        return sum;
    };
    request.run.layers.assign(matrix_layers, {});
    const model::ModelPlan resident(file, request);
    for (const std::size_t layer : {0, 2, 3, 5}) request.run.layers[layer].weights_at = spec::Place::host;
    const model::ModelPlan streamed(file, request);
    const int64_t on_host = bytes(streamed.common(), "base weights"),
                  slots = bytes(streamed.resident(), "layers' slots");
    EXPECT_EQ(bytes(resident.common(), "base weights"), 0);
    EXPECT_EQ(bytes(resident.resident(), "layers' slots"), 0);
    EXPECT_GT(on_host, 0);
    if (GetParam() == Base::mixed) {
        EXPECT_GT(2 * slots, on_host) << "two slots of the largest of four layers";
    } else {
        EXPECT_EQ(2 * slots, on_host) << "layers are alike: two slots for four of them";
    }
    const int64_t left = bytes(streamed.resident(), "base weights"), all = bytes(resident.resident(), "base weights");
    if (GetParam() != Base::nf4_on_the_way_in && GetParam() != Base::mixed) {
        EXPECT_EQ(all, 0) << "in the file's map";
    } else if (GetParam() == Base::nf4_on_the_way_in) {
        EXPECT_EQ(left + on_host, all);
    }
}

TEST(StreamedWeightsOptions, WhatIsMadeWhileLoadingNeedsAFolderOnTheDisk) {
    for (const Base base : all_bases) {
        SCOPED_TRACE(name_of(base));
        const auto file =
            std::make_shared<const formats::WeightFile>(formats::WeightFile::open(base_folder(base).string()));
        const ScratchFolder scratch;
        model::LoadRequest request;
        request.load_in_4bit = base == Base::nf4_on_the_way_in;
        if (base == Base::mixed) request.precision = mixed_precision();
        request.sizes.tokens = request.sizes.longest = request.sizes.head_rows = 16;
        request.sizes.segments = 1;
        request.run.layers = {{.weights_at = spec::Place::disk}};
        const bool in_place = base != Base::nf4_on_the_way_in && base != Base::mixed;
        try {
            const model::ModelPlan plan(file, request);
            EXPECT_TRUE(in_place);
        } catch (const Error& error) {
            EXPECT_FALSE(in_place);
            EXPECT_EQ(error.id().name(), "model.device-map");
            EXPECT_NE(std::string(error.what()).find("model.offload_folder"), std::string::npos) << error.what();
        }
        request.offload_folder = (scratch / "weights").string();
        const model::ModelPlan plan(file, request);
        ops::Context ctx(at::kCPU);
        const model::ModelParts parts = plan.load(ctx);
        EXPECT_EQ(fs::exists(scratch / "weights"), !in_place);
        EXPECT_TRUE(in_place || fs::is_empty(scratch / "weights")) << "the file has no name while it is used";
    }
}

TEST(StreamedWeightsOptions, FormsThatAreMadeOnTheDeviceStayThere) {
    const auto file =
        std::make_shared<const formats::WeightFile>(formats::WeightFile::open(base_folder(Base::bf16).string()));
    model::LoadRequest request;
    request.run.layers = {{.weights_at = spec::Place::host}};
    request.trains = true;
    request.finetuning_type = config::FinetuningType::full;
    try {
        const model::ModelPlan plan(file, request);
        FAIL() << "masters are trained on the device";
    } catch (const Error& error) {
        EXPECT_EQ(error.id().name(), "model.device-map");
        EXPECT_NE(std::string(error.what()).find("finetuning_type full trains all of them there"), std::string::npos)
            << error.what();
    }
}

INSTANTIATE_TEST_SUITE_P(Cpu, StreamedWeights, ::testing::ValuesIn(all_bases),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace unsloth
