#include "unsloth/spec/precision.h"

#include <gtest/gtest.h>

#include "unsloth/core/error.h"

namespace unsloth::testing {
namespace {

using spec::PrecisionMap;
using spec::WeightType;

spec::ModelSpec model(bool tied = false) {
    spec::ModelSpec spec;
    spec.num_layers = 12;
    spec.layers.resize(12);
    spec.hidden_size = spec.intermediate_size = 64;
    spec.num_heads = spec.num_kv_heads = 2;
    spec.head_dim = 32;
    spec.vocab_size = 8;
    spec.tie_word_embeddings = tied;
    return spec;
}

WeightType type_of(const PrecisionMap& map, const std::string& tensor, bool tied = false) {
    for (const spec::TensorRule& rule : tensor_table(model(tied)))
        if (rule.hf_name == tensor + ".weight") return map.of(rule, model(tied));
    ADD_FAILURE() << "no tensor " << tensor;
    return WeightType::automatic;
}

std::string refusal(const std::vector<std::pair<std::string, std::string>>& entries, bool tied = false) {
    try {
        PrecisionMap(entries).check(model(tied));
    } catch (const Error& error) {
        EXPECT_EQ(error.id().name(), "model.precision");
        return error.what();
    }
    return "nothing was refused";
}

TEST(Precision, TheLongestNameHolds) {
    const PrecisionMap map({{"default", "nf4"},
                            {"model.layers", "fp4"},
                            {"model.layers.1", "bf16"},
                            {"model.layers.1-10", "int8"},
                            {"model.layers.1-3.mlp", "fp32"},
                            {"model.layers.2.mlp.up_proj", "fp16"},
                            {"lm_head", "int8"}});
    map.check(model());
    EXPECT_EQ(map.of_default(), WeightType::nf4);
    EXPECT_EQ(type_of(map, "model.layers.0.mlp.up_proj"), WeightType::fp4);
    EXPECT_EQ(type_of(map, "model.layers.11.self_attn.q_proj"), WeightType::fp4);
    EXPECT_EQ(type_of(map, "model.layers.1.self_attn.q_proj"), WeightType::bf16);
    EXPECT_EQ(type_of(map, "model.layers.10.self_attn.q_proj"), WeightType::int8);
    EXPECT_EQ(type_of(map, "model.layers.1.mlp.down_proj"), WeightType::f32);
    EXPECT_EQ(type_of(map, "model.layers.2.mlp.up_proj"), WeightType::f16);
    EXPECT_EQ(type_of(map, "lm_head"), WeightType::int8);
    EXPECT_EQ(type_of(map, "model.embed_tokens"), WeightType::automatic);
    EXPECT_EQ(type_of(map, "model.norm"), WeightType::automatic);
    EXPECT_EQ(type_of(map, "model.layers.1.input_layernorm"), WeightType::automatic);
    EXPECT_TRUE(map.names_head() && !map.names_embeddings());
}

TEST(Precision, TiedEmbeddingsHaveTwoNames) {
    const std::vector<std::pair<std::string, std::string>> head{{"lm_head", "int8"}};
    const PrecisionMap map(head);
    EXPECT_EQ(type_of(map, "model.embed_tokens", /*tied=*/true), WeightType::int8);
    EXPECT_EQ(type_of(map, "model.embed_tokens", /*tied=*/false), WeightType::automatic);
    EXPECT_NE(refusal({{"lm_head", "int8"}, {"model.embed_tokens", "bf16"}}, true).find("one matrix"),
              std::string::npos);
    EXPECT_EQ(refusal({{"lm_head", "int8"}, {"model.embed_tokens", "bf16"}}), "nothing was refused");
}

TEST(Precision, WhatIsNotThereIsRefusedWithTheNearestName) {
    const auto expect = [](const std::string& key, const std::string& type, const std::string& part) {
        const std::string said = refusal({{key, type}});
        EXPECT_NE(said.find(part), std::string::npos) << said;
    };
    expect("model.embed_token", "nf4", "no module 'model.embed_token'");
    expect("model.embed_token", "nf4", "Did you mean model.embed_tokens?");
    expect("lm_heat", "nf4", "Did you mean lm_head?");
    expect("model.layers.3.mlp.up_prj", "nf4", "Did you mean model.layers.3.mlp.up_proj?");
    expect("model.layers.3.mpl", "nf4", "Did you mean model.layers.3.mlp?");
    expect("model.layers.3.mlp.", "nf4", "no module");
    expect("model.layers.3-1", "nf4", "no module");
    expect("model.layers.3.input_layernorm", "nf4", "no module");
    expect("model.norm", "nf4", "no module");
    expect("lm_head", "nf5", "Did you mean nf4?");
    expect("lm_head", "int4", "Types are nf4, fp4, int8");
    expect("model.layers.12", "nf4", "the model has layers 0 to 11");
    EXPECT_NE(refusal({{"model.layers.0-4", "nf4"}, {"model.layers.4-7", "int8"}}).find("Let the ranges be apart"),
              std::string::npos);
    EXPECT_NE(refusal({{"lm_head", "nf4"}, {"lm_head", "int8"}}).find("named twice"), std::string::npos);
}

}  // namespace
}  // namespace unsloth::testing
