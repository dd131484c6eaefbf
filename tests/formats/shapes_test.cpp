#include "unsloth/formats/shapes.h"

#include <gtest/gtest.h>

#include "unsloth/formats/hf_config.h"

namespace unsloth::formats {
namespace {

/// A model of the shape's name is the same whether the file describes it or what is written of it.
TEST(Shapes, AreConfigsThatReadAndWriteTheSame) {
    const std::vector<std::string> names = builtin_shape_names();
    ASSERT_FALSE(names.empty());
    for (const std::string& name : names) {
        const spec::ModelSpec shape = builtin_shape(name);
        const std::string kept = write_model_config(shape, {}, builtin_config(name));
        if (shape.vision) {  // a tower is the original's to describe
            EXPECT_EQ(write_model_config(parse_model_spec(kept, name), {}, kept), kept) << name;
            continue;
        }
        const std::string fresh = write_model_config(shape);
        for (const std::string& text : {kept, fresh})
            EXPECT_EQ(write_model_config(parse_model_spec(text, name)), fresh) << name;
    }
}

TEST(Shapes, HaveTheirFamiliesFeatures) {
    const spec::ModelSpec llama = builtin_shape("llama-3.2-1b");
    EXPECT_EQ(llama.ropes[0].type, spec::RopeSpec::Type::llama3);
    EXPECT_EQ(llama.ropes[0].factor, 32);
    EXPECT_EQ(llama.head_dim, 64);
    EXPECT_TRUE(llama.tie_word_embeddings);
    EXPECT_EQ(builtin_shape("mistral-7b").layers, std::vector<spec::LayerSpec>(32));
    EXPECT_TRUE(builtin_shape("qwen2.5-7b").qkv_bias);
    EXPECT_TRUE(builtin_shape("qwen3-8b").qk_norm);
    const spec::ModelSpec gpt_oss = builtin_shape("gpt-oss-20b");
    EXPECT_EQ(gpt_oss.experts->count, 32);
    EXPECT_EQ(gpt_oss.ropes[0].factor, 32);
    EXPECT_EQ(gpt_oss.layers[0].window, 128);
    EXPECT_EQ(gpt_oss.layers[1].window, 0);
    const spec::ModelSpec seeing = builtin_shape("qwen2.5-vl-7b");
    EXPECT_EQ(seeing.vision->depth, 32);
    EXPECT_EQ(seeing.vision->window, 4);
    EXPECT_EQ(builtin_shape("qwen3-vl-8b").vision->deepstack, (std::vector<int64_t>{8, 16, 24}));
    EXPECT_EQ(builtin_shape("qwen3-30b-a3b").experts, (spec::ExpertsSpec{128, 8, 768, spec::RouterWeights::of_chosen}));
}

}  // namespace
}  // namespace unsloth::formats
