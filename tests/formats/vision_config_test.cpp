// config.json of models that see images, as transformers 4.x and 5.x write it, and how their pixels are normalised.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/files.h"
#include "formats/support.h"
#include "unsloth/core/files.h"
#include "unsloth/formats/hf_config.h"
#include "unsloth/spec/tensor_table.h"

namespace unsloth::formats {
namespace {

using nlohmann::json;
using test::ScratchFolder;

json seeing_config(const std::string& family, const std::string& file = "model/config.json") {
    return json::parse(read_file(test::golden("families/" + family + "/" + file)));
}

spec::ModelSpec read(const json& config) {
    return parse_model_spec(config.dump(), "test");
}

void expect_refused(const json& config, const std::string& word) {
    try {
        read(config);
        ADD_FAILURE() << "not refused: " << word;
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
}

TEST(VisionConfig, ReadsQwen3Vl) {
    const spec::ModelSpec model = read(seeing_config("qwen3_vl"));
    EXPECT_EQ(model.part_of, "qwen3_vl");
    EXPECT_TRUE(model.qk_norm);
    EXPECT_EQ(model.head_dim, 24);
    EXPECT_EQ(model.ropes[0].sections, (std::array<int64_t, 3>{6, 3, 3}));
    EXPECT_TRUE(model.ropes[0].interleaved);
    EXPECT_EQ(model.ropes[0].theta, 5000000.0);
    EXPECT_EQ(tensor_table(model).front().hf_name, "model.language_model.embed_tokens.weight");
    EXPECT_EQ(tensor_table(model).back().hf_name, "lm_head.weight");
    const spec::VisionSpec& tower = model.vision.value();
    EXPECT_EQ(tower.hidden_size, 24);
    EXPECT_EQ(tower.position_side, 6);
    EXPECT_EQ(tower.deepstack, (std::vector<int64_t>{0, 1, 3}));
    EXPECT_EQ(tower.window, 0);
    EXPECT_EQ(tower.image_token, 6);
    EXPECT_EQ(tower.image_mean[0], 0.5);
    EXPECT_TRUE(!tower.rms_norm && !tower.gated_mlp && tower.patch_bias);
}

TEST(VisionConfig, ReadsQwen25Vl) {
    const spec::ModelSpec model = read(seeing_config("qwen2_5_vl"));
    EXPECT_TRUE(model.qkv_bias && !model.qk_norm);
    EXPECT_EQ(model.ropes[0].sections, (std::array<int64_t, 3>{2, 3, 3}));
    EXPECT_FALSE(model.ropes[0].interleaved);
    const spec::VisionSpec& tower = model.vision.value();
    EXPECT_EQ(tower.window, 2);  // 56 pixels of 28 a token
    EXPECT_EQ(tower.unwindowed, (std::vector<int64_t>{1}));
    EXPECT_EQ(tower.position_side, 0);
    EXPECT_TRUE(tower.rms_norm && tower.gated_mlp && !tower.patch_bias && tower.deepstack.empty());
}

/// With the text part's keys beside vision_config, or in text_config; both generations' rope.
TEST(VisionConfig, ReadsOlderWordsAndWritesThemAgain) {
    for (const char* const family : {"qwen3_vl", "qwen2_5_vl"}) {
        SCOPED_TRACE(family);
        const json hub = seeing_config(family, "config_hub.json");
        const spec::ModelSpec now = read(seeing_config(family)), older = read(hub);
        EXPECT_EQ(older.model_type, now.model_type);
        EXPECT_EQ(older.part_of, now.part_of);
        EXPECT_EQ(older.ropes[0].sections, now.ropes[0].sections);
        EXPECT_EQ(older.ropes[0].theta, now.ropes[0].theta);
        EXPECT_EQ(older.num_layers, now.num_layers);
        EXPECT_EQ(older.dtype, now.dtype);
        EXPECT_EQ(older.vision->unwindowed, now.vision->unwindowed);
        EXPECT_EQ(vision_tensors(*older.vision).size(), vision_tensors(*now.vision).size());
        spec::ModelSpec changed = older;
        changed.ropes[0].theta = 12345;
        const json written = json::parse(write_model_config(changed, {}, hub.dump()));
        EXPECT_EQ(written.at("vision_config"), hub.at("vision_config"));
        EXPECT_EQ(written.at("model_type"), hub.at("model_type"));
        EXPECT_EQ(written.contains("text_config"), hub.contains("text_config"));
        EXPECT_EQ(read(written).ropes[0].theta, 12345);
        EXPECT_EQ(read(written).ropes[0].sections, now.ropes[0].sections);
    }
}

TEST(VisionConfig, RefusesByNameWhatIsNotComputed) {
    const auto changed = [](const char* family, const char* part, const json& changes) {
        json config = seeing_config(family);
        (*part == '\0' ? config : config[part]).update(changes);
        return config;
    };
    expect_refused(changed("qwen3_vl", "vision_config", {{"hidden_act", "gelu"}}), "vision_config.hidden_act");
    expect_refused(changed("qwen3_vl", "vision_config", {{"in_channels", 4}}), "in_channels");
    expect_refused(changed("qwen3_vl", "vision_config", {{"temporal_patch_size", 1}}), "temporal_patch_size");
    expect_refused(changed("qwen3_vl", "vision_config", {{"out_hidden_size", 32}}), "out_hidden_size");
    expect_refused(changed("qwen3_vl", "vision_config", {{"num_heads", 5}}), "hidden_size");
    expect_refused(changed("qwen3_vl", "vision_config", {{"num_position_embeddings", 35}}), "a square number");
    expect_refused(changed("qwen3_vl", "vision_config", {{"deepstack_visual_indexes", {4}}}),
                   "deepstack_visual_indexes");
    expect_refused(changed("qwen3_vl", "vision_config", {{"deepstack_visual_indexes", {1, 0}}}), "ascending");
    expect_refused(changed("qwen2_5_vl", "vision_config", {{"fullatt_block_indexes", {-1}}}), "fullatt_block_indexes");
    expect_refused(changed("qwen2_5_vl", "vision_config", {{"window_size", 20}}), "window_size");
    expect_refused(changed("qwen2_5_vl", "", {{"image_token_id", 304}}), "image_token_id");
    expect_refused(changed("qwen2_5_vl", "", {{"vision_config", nullptr}}), "vision_config");
    expect_refused(changed("qwen3_vl", "text_config", {{"rope_parameters", {{"rope_type", "default"}}}}),
                   "mrope_section");
    expect_refused(changed("qwen3_vl", "text_config",
                           {{"rope_parameters", {{"mrope_section", {6, 3, 3}}, {"mrope_interleaved", false}}}}),
                   "mrope_interleaved");
    expect_refused(changed("qwen3_vl", "text_config", {{"rope_parameters", {{"mrope_section", {6, 3, 4}}}}}),
                   "12 together");
    expect_refused(
        changed("qwen2_5_vl", "text_config",
                {{"rope_parameters", {{"rope_type", "dynamic"}, {"factor", 2.0}, {"mrope_section", {2, 3, 3}}}}}),
        "mrope_section");
    expect_refused(changed("qwen2_5_vl", "text_config", {{"rope_parameters", nullptr}}), "mrope_section");
}

TEST(VisionConfig, ReadsHowPixelsAreNormalised) {
    const ScratchFolder folder;
    const auto write = [&](const char* name, const json& value) {
        std::ofstream(folder / name, std::ios::binary) << value.dump();
    };
    write("config.json", seeing_config("qwen3_vl"));
    EXPECT_EQ(read_model_spec(folder.path()).vision->image_mean[1], 0.5);
    write("preprocessor_config.json", {{"image_mean", {0.1, 0.2, 0.3}}, {"image_std", {0.5, 0.6, 0.7}}});
    EXPECT_EQ(read_model_spec(folder.path()).vision->image_mean[1], 0.2);
    EXPECT_EQ(read_model_spec(folder.path()).vision->image_std[2], 0.7);
    write("processor_config.json", {{"image_processor", {{"image_mean", {0.4, 0.4, 0.4}}}}});
    EXPECT_EQ(read_model_spec(folder.path()).vision->image_mean[1], 0.4);
    const auto expect_read_refused = [&](const json& values, const std::string& word) {
        write("processor_config.json", {{"image_processor", values}});
        try {
            read_model_spec(folder.path());
            ADD_FAILURE() << "not refused: " << word;
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
        }
    };
    expect_read_refused({{"image_mean", {0.4, 0.4}}}, "image_mean");
    expect_read_refused({{"image_std", {0.4, 0.4, 0}}}, "image_std");
    expect_read_refused({{"do_normalize", false}}, "do_normalize");
    expect_read_refused({{"rescale_factor", 1.0}}, "rescale_factor");
}

}  // namespace
}  // namespace unsloth::formats
