// Models most of whose layers have gated delta nets: what is read past, kept and refused.
#include "train/families_support.h"
#include "unsloth/formats/safetensors.h"
#include "unsloth/train/run_warnings.h"

namespace unsloth {
namespace {

using namespace test;

fs::path hybrid_set() {
    return family_set("qwen3_5_text");
}

/// A folder as the hub has it: the text model's names within another's, a tower and layers that guess further tokens.
void write_whole_model(const fs::path& from, const fs::path& to) {
    fs::create_directories(to);
    const formats::SafetensorsFile file(from / "model.safetensors");
    std::vector<formats::TensorBlob> blobs;
    for (const formats::TensorView& view : file.tensors()) {
        const bool inner = view.name.starts_with("model.");
        blobs.push_back({{inner ? "model.language_model." + view.name.substr(6) : view.name, view.dtype, view.shape},
                         {view.data.begin(), view.data.end()}});
    }
    for (const char* const other : {"model.visual.patch_embed.proj.weight", "mtp.fc.weight"})
        blobs.push_back({{other, spec::DType::bf16, {2, 3}}, std::vector<std::byte>(12, std::byte{60})});
    formats::write_safetensors(to / "model.safetensors", blobs);
    nlohmann::json whole{{"architectures", {"Qwen3_5ForConditionalGeneration"}}, {"model_type", "qwen3_5"}};
    whole["text_config"] = read_json(from / "config.json");
    whole["tie_word_embeddings"] = false;
    whole["vision_config"] = {{"model_type", "qwen3_5_vision"}, {"depth", 1}};
    write_text(to / "config.json", whole.dump());
}

TEST(Hybrid, OtherPartsAreReadPastAndKept) {
    UNSLOTH_NEEDS_XZ();
    const fs::path text = unpacked(hybrid_set() / "model");
    const ScratchFolder folder;
    write_whole_model(text, folder / "whole");
    const std::vector<int32_t> row = long_row("qwen3_5_text");
    EXPECT_TRUE(same_bits(logits_of(folder / "whole", row), logits_of(text, row)));
    const formats::WeightFile base = formats::WeightFile::open((folder / "whole").string());
    EXPECT_EQ(base.tensors.others.size(), 2U);
    fs::create_directories(folder / "written");
    formats::write_model(formats::MergedModel(base, nullptr), folder / "written", {});
    const formats::WeightFile written = formats::WeightFile::open((folder / "written").string());
    for (const char* const other : {"mtp.fc.weight", "model.visual.patch_embed.proj.weight"})
        EXPECT_TRUE(std::ranges::equal(written.checkpoint.at(other).data, base.checkpoint.at(other).data)) << other;
}

TEST(Hybrid, RefusesByNameWhatItDoesNotDo) {
    UNSLOTH_NEEDS_XZ();
    const fs::path model = unpacked(hybrid_set() / "model");
    const auto file = std::make_shared<const formats::WeightFile>(formats::WeightFile::open(model.string()));
    const auto request = [] {
        model::LoadRequest request;
        request.lora.emplace();
        request.lora->target_modules = {"q_proj", "in_proj_qkv"};
        request.trains = true;
        request.sizes.tokens = request.sizes.longest = request.sizes.head_rows = 16;
        request.sizes.segments = 2;
        return request;
    };
    const auto refuse = [&](const model::LoadRequest& asked, const std::string& words) {
        try {
            const model::ModelPlan plan(file, asked);
            ADD_FAILURE() << words << " was planned";
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
        }
    };
    EXPECT_NO_THROW(model::ModelPlan(file, request()));
    model::LoadRequest asked = request();
    asked.sizes.keys = 16;
    refuse(asked, "share_prompt");
    asked = request();
    asked.lora->target_modules.emplace_back("in_proj_a");
    refuse(asked, "in_proj_a");
    asked = request();
    asked.tp = model::TensorParallel(spec::TensorRank{.rank = 0, .size = 4});
    refuse(asked, "linear_num_key_heads 2");
}

/// Without names of its own an adapter is of all matrices but the two small ones.
TEST(Hybrid, AdaptersAreOfBothKindsOfLayers) {
    UNSLOTH_NEEDS_XZ();
    const spec::ModelSpec spec = formats::read_model_spec(unpacked(hybrid_set() / "model"));
    spec::LoraSpec lora;
    lora.usual_targets = true;
    lora.target_modules = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
    const std::vector<spec::LayerLora> layers = spec::resolve_lora(lora, spec);
    const auto count = [&](std::size_t layer) { return std::distance(layers[layer].begin(), layers[layer].end()); };
    EXPECT_EQ(count(0), 6) << "in_proj_qkv, in_proj_z, out_proj, and the MLP's";
    EXPECT_EQ(count(3), 7);
    EXPECT_EQ(layers[0][spec::Projection::delta_b].r, 0);
    EXPECT_FALSE(train::doubt_targets(lora, spec));
    lora.usual_targets = false;
    EXPECT_NE(train::doubt_targets(lora, spec).value_or("").find("4 of 5 layers"), std::string::npos);
}

TEST(Hybrid, FourBitsForAllOfItAreDoubted) {
    UNSLOTH_NEEDS_XZ();
    const spec::ModelSpec spec = formats::read_model_spec(unpacked(hybrid_set() / "model"));
    config::Config config;
    EXPECT_NE(train::doubt_quantization(config, spec, false).value_or("").find("--sensitivity nf4"), std::string::npos);
    EXPECT_FALSE(train::doubt_quantization(config, spec, true)) << "nothing is quantized here";
    EXPECT_FALSE(train::doubt_quantization(config, spec::ModelSpec(), false)) << "another family";
    config.model.precision = {{"default", "nf4"}};
    EXPECT_FALSE(train::doubt_quantization(config, spec, false)) << "it was chosen";
    config.model.precision.clear();
    config.model.load_in_4bit = false;
    EXPECT_FALSE(train::doubt_quantization(config, spec, false));
}

}  // namespace
}  // namespace unsloth
