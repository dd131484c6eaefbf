#include "unsloth/formats/random_model.h"

#include <cmath>

#include "formats/model_support.h"
#include "unsloth/core/files.h"
#include "unsloth/core/parallel.h"
#include "unsloth/formats/bnb4.h"
#include "unsloth/formats/hf_config.h"
#include "unsloth/formats/load_plan.h"
#include "unsloth/formats/mxfp4.h"
#include "unsloth/spec/vision_spec.h"

namespace unsloth::formats {
namespace {

using namespace test;

spec::ModelSpec wide_spec() {
    spec::ModelSpec spec = tiny_spec();
    spec.hidden_size = 1024;
    spec.intermediate_size = 1100;  // rows that end within a block of 64
    spec.head_dim = 256;
    spec.vocab_size = 300;
    return spec;
}

struct Moments {
    double mean = 0, deviation = 0;
};

Moments moments(const std::vector<float>& values) {
    Moments found;
    for (const float value : values) found.mean += value / static_cast<double>(values.size());
    for (const float value : values)
        found.deviation += (value - found.mean) * (value - found.mean) / static_cast<double>(values.size());
    found.deviation = std::sqrt(found.deviation);
    return found;
}

TEST(RandomModel, HasTheDeviationOfTransformersInBothForms) {
    const ScratchFolder folder;
    for (const bool nf4 : {false, true}) {
        SCOPED_TRACE(nf4);
        const fs::path made = folder / (nf4 ? "nf4" : "bf16");
        fs::create_directories(made);
        write_random_model({wide_spec(), nf4, 1, {}}, made);
        const Checkpoint checkpoint = Checkpoint::open(made.string());
        const std::string name = "model.layers.1.mlp.down_proj.weight";
        std::vector<float> values(1024 * 1100);
        const auto weight = find_quant4(checkpoint, name);
        ASSERT_EQ(weight.has_value(), nf4);
        if (nf4)
            dequantize_rows(weight->view, 0, weight->view.rows, values.data());
        else
            spec::convert_to_f32(spec::DType::bf16, checkpoint.at(name).data.data(),
                                 static_cast<int64_t>(values.size()), values.data());
        const Moments found = moments(values);
        EXPECT_NEAR(found.mean, 0, 1e-4);
        EXPECT_NEAR(found.deviation, 0.02, 5e-4);
    }
}

TEST(RandomModel, HasExpertsInMxfp4) {
    const ScratchFolder folder;
    const std::string config = read_file(golden("families/gpt_oss/model/config.json"));
    const spec::ModelSpec spec = parse_model_spec(config, "config");
    write_random_model({spec, false, 1, config, /*mxfp4=*/true}, folder.path());
    const WeightFile file = WeightFile::open(folder.path().string());
    EXPECT_EQ(file.quantization->quant_method, "mxfp4");
    const auto weight = find_mxfp4(file.checkpoint, "model.layers.1.mlp.experts.gate_up_proj");
    ASSERT_TRUE(weight);
    std::vector<float> values(static_cast<std::size_t>(weight->rows * weight->cols));
    dequantize_rows(*weight, 0, weight->rows, values.data());
    const Moments found = moments(values);
    EXPECT_NEAR(found.mean, 0, 1e-3);
    EXPECT_NEAR(found.deviation, 0.02, 1e-3);
    EXPECT_THROW(write_random_model({wide_spec(), false, 1, {}, /*mxfp4=*/true}, folder.path()), Error);
}

TEST(RandomModel, IsTheSameEachTimeAndAnotherWithAnotherSeed) {
    const ScratchFolder folder;
    const auto made = [&](const char* name, uint64_t seed) {
        fs::create_directories(folder / name);
        write_random_model({wide_spec(), true, seed, {}}, folder / name);
        return read_file(folder / name / "model.safetensors");
    };
    const std::string first = made("a", 5);
    EXPECT_EQ(first, made("b", 5));
    EXPECT_NE(first, made("c", 6));
}

TEST(RandomModel, NoTwoLayersAreAlike) {
    const ScratchFolder folder;
    write_random_model({wide_spec(), true, 1, {}}, folder.path());
    const Checkpoint checkpoint = Checkpoint::open(folder.path().string());
    const auto codes = [&](int layer) {
        const auto data = checkpoint.at(cat("model.layers.", layer, ".self_attn.q_proj.weight")).data;
        return std::string(reinterpret_cast<const char*>(data.data()), data.size());
    };
    EXPECT_NE(codes(0), codes(1));
}

/// Towers are written, too: under the names of either generation of checkpoints, norms 1, biases 0.
TEST(RandomModel, HasItsTower) {
    for (const std::string family : {"qwen2_5_vl", "qwen3_vl"}) {
        SCOPED_TRACE(family);
        const ScratchFolder folder;
        RandomModel model;
        model.original_config = read_file(golden("families/" + family + "/model/config.json"));
        model.spec = parse_model_spec(model.original_config, family);
        write_random_model(model, folder.path());
        const WeightFile file = WeightFile::open(folder.path().string());
        EXPECT_EQ(file.tensors.vision.size(), spec::vision_tensors(*file.spec.vision).size());
        for (const TensorSource& source : file.tensors.vision) {
            const TensorView& tensor = source.tensor();
            std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
            spec::convert_to_f32(tensor.dtype, tensor.data.data(), tensor.elements(), values.data());
            const std::string& name = source.rule.hf_name;
            const bool norm = name.find("norm") != std::string::npos || name.find("ln_q") != std::string::npos;
            const Moments found = moments(values);
            if (tensor.shape.size() > 1)
                EXPECT_NEAR(found.deviation, 0.02, 0.004) << name;
            else
                EXPECT_NEAR(found.mean, norm && name.ends_with(".weight") ? 1 : 0, 1e-6) << name;
        }
    }
}

/// Gated delta nets begin as transformers has them: norms 1, and paces of forgetting up to 16.
TEST(RandomModel, HasGatedDeltaNets) {
    const ScratchFolder folder;
    RandomModel model;
    model.original_config = read_file(golden("families/qwen3_5_text/model/config.json"));
    model.spec = parse_model_spec(model.original_config, "qwen3_5_text");
    write_random_model(model, folder.path());
    const Checkpoint checkpoint = Checkpoint::open(folder.path().string());
    const auto values = [&](const char* name) {
        const TensorView& tensor = checkpoint.at(cat("model.layers.1.linear_attn.", name));
        std::vector<float> all(static_cast<std::size_t>(tensor.elements()));
        spec::convert_to_f32(tensor.dtype, tensor.data.data(), tensor.elements(), all.data());
        return all;
    };
    for (const char* const name : {"norm.weight", "dt_bias"}) EXPECT_NEAR(moments(values(name)).mean, 1, 1e-6) << name;
    EXPECT_NEAR(moments(values("conv1d.weight")).deviation, 0.02, 0.004);
    EXPECT_NEAR(values("A_log")[3], std::log(14), 0.01);
    EXPECT_EQ(checkpoint.at("model.layers.1.input_layernorm.weight").data[0], std::byte{0});
}

/// Or transformers would take the tower's linears for 4-bit ones.
TEST(RandomModel, In4BitSaysThatItsTowerIsNot) {
    const std::pair<std::string, std::vector<std::string>> families[] = {
        {"qwen2_5_vl", {"model.visual", "visual", "lm_head"}},
        {"mllama",
         {"model.vision_model", "vision_model", "model.multi_modal_projector", "multi_modal_projector", "lm_head"}}};
    for (const auto& [family, skipped] : families) {
        const ScratchFolder folder;
        RandomModel model;
        model.nf4 = true;
        model.original_config = read_file(golden("families/" + family + "/model/config.json"));
        model.spec = parse_model_spec(model.original_config, family);
        write_random_model(model, folder.path());
        EXPECT_EQ(WeightFile::open(folder.path().string()).quantization.value().llm_int8_skip_modules, skipped);
    }
}

}  // namespace
}  // namespace unsloth::formats
