// hardware.weight_mantissa_bits: which weights it rounds, and where it is refused.
#include "train/support.h"
#include "unsloth/ops/quant.h"
#include "unsloth/session/session.h"

namespace unsloth {
namespace {

using namespace test;

const Flags three_bits{"--hardware.weight_mantissa_bits", "3", "--hardware.dequantized_weights", "on"};

TEST(MantissaBits, AreOfTraining) {
    const config::LoadedConfig loaded = make_config(three_bits + Flags{"--model.dtype", "bfloat16"});
    EXPECT_EQ(placement::load_request(loaded, at::kCPU, /*trains=*/true).mantissa_bits, 3);
    EXPECT_EQ(placement::load_request(loaded, at::kCPU, /*trains=*/false).mantissa_bits, 0)
        << "what evaluates, answers or teaches has the checkpoint's weights";
}

TEST(MantissaBits, WantWeightsThatLieExpanded) {
    UNSLOTH_NEEDS_XZ();
    const ScratchFolder folder;
    write_rows(folder / "rows.jsonl", {{.ids = {1, 2, 3}, .labels = {1, 2, 3}}});
    const Flags flags{"--model.path",          model_folder("tiny_llama/nf4_dq").string(),
                      "--data.train_file",     (folder / "rows.jsonl").string(),
                      "--training.output_dir", (folder / "out").string(),
                      "--hardware.device",     "cpu",
                      "--model.dtype",         "bfloat16",
                      "--training.max_steps",  "1"};
    try {
        const train::Trainer trainer(make_config(flags + three_bits));
        FAIL() << "on a CPU nothing lies expanded";
    } catch (const Error& error) {
        EXPECT_EQ(error.id().name(), "option.no-effect");
        EXPECT_NE(std::string(error.what()).find("those of layer 0 do not"), std::string::npos) << error.what();
    }
}

TEST(MantissaBits, AreOfLayersWeightsAlone) {
    UNSLOTH_NEEDS_XZ();
    UNSLOTH_NEEDS_DEVICE("cuda");
    ops::Context ctx(ops::choose_device("cuda"));
    const auto load = [&](int64_t bits) {
        model::LoadRequest request;
        request.device = ctx.device();
        request.dtype = at::kBFloat16;
        request.mantissa_bits = bits;
        request.sizes.tokens = request.sizes.longest = request.sizes.head_rows = 16;
        request.sizes.segments = 1;
        request.run.head_tile = 16;
        request.run.layers = {{.cached = true}};
        const model::ModelPlan plan(std::make_shared<const formats::WeightFile>(
                                        formats::WeightFile::open(model_folder("tiny_llama/nf4_dq").string())),
                                    request);
        return std::make_unique<model::Model>(ctx, plan.load(ctx));
    };
    const auto plain = load(0), rounded = load(3);
    const auto weights_of = [&](const model::Model& model, int layer, weights::Group g) {
        return std::get<weights::DenseBase>(model.parts().network.weight_provider->ready(ctx, layer, 16)[g].base).w_NK;
    };
    for (int layer = 0; layer < static_cast<int>(plain->spec().num_layers); ++layer)
        for (const weights::Group g : plain->parts().network.layout.all_groups()) {
            const at::Tensor expected = weights_of(*plain, layer, g).clone();
            ops::round_mantissa(expected, 3);
            EXPECT_TRUE(at::equal(weights_of(*rounded, layer, g), expected)) << name_of(g) << " of layer " << layer;
            EXPECT_FALSE(at::equal(weights_of(*plain, layer, g), expected));
        }
    const auto head_of = [](const model::Model& model) {
        return std::get<at::Tensor>(model.parts().network.embedding_and_head.lm_head_VD);
    };
    EXPECT_TRUE(at::equal(head_of(*plain), head_of(*rounded)));
}

}  // namespace
}  // namespace unsloth
