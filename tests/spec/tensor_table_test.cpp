#include "unsloth/spec/tensor_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace unsloth::spec {
namespace {

ModelSpec model() {
    ModelSpec spec;
    spec.hidden_size = 8;
    spec.intermediate_size = 12;
    spec.num_layers = 2;
    spec.layers.resize(2);
    spec.num_heads = 2;
    spec.num_kv_heads = 1;
    spec.head_dim = 6;
    spec.vocab_size = 20;
    return spec;
}

const TensorRule* find(const std::vector<TensorRule>& table, const std::string& name) {
    const auto it =
        std::find_if(table.begin(), table.end(), [&](const TensorRule& rule) { return rule.hf_name == name; });
    return it == table.end() ? nullptr : &*it;
}

TEST(TensorTable, ListsAPlainLlama) {
    const auto table = tensor_table(model());
    EXPECT_EQ(table.size(), 2U * 9 + 3);
    EXPECT_EQ(table.front().hf_name, "model.embed_tokens.weight");
    EXPECT_EQ(table.front().shape, (std::vector<int64_t>{20, 8}));
    EXPECT_EQ(table.back().hf_name, "lm_head.weight");
    const TensorRule* const o = find(table, "model.layers.1.self_attn.o_proj.weight");
    ASSERT_NE(o, nullptr);
    EXPECT_EQ(o->role, TensorRole::linear);
    EXPECT_EQ(o->id, (LinearId{1, Projection::o}));
    EXPECT_EQ(o->shape, (std::vector<int64_t>{8, 12}));
    EXPECT_TRUE(o->may_be_quantised);
    const TensorRule* const norm = find(table, "model.layers.0.post_attention_layernorm.weight");
    ASSERT_NE(norm, nullptr);
    EXPECT_EQ(norm->role, TensorRole::post_norm);
    EXPECT_FALSE(norm->may_be_quantised);
    EXPECT_TRUE(table.front().may_be_quantised && table.back().may_be_quantised);
    std::set<std::string> names;
    for (const TensorRule& rule : table) EXPECT_TRUE(names.insert(rule.hf_name).second) << rule.hf_name;
}

TEST(TensorTable, FollowsTheOptionsOfTheArchitecture) {
    ModelSpec spec = model();
    spec.tie_word_embeddings = true;
    spec.qkv_bias = true;
    spec.qk_norm = true;
    const auto table = tensor_table(spec);
    EXPECT_EQ(find(table, "lm_head.weight"), nullptr);
    const TensorRule* const bias = find(table, "model.layers.0.self_attn.k_proj.bias");
    ASSERT_NE(bias, nullptr);
    EXPECT_EQ(bias->role, TensorRole::bias);
    EXPECT_EQ(bias->shape, std::vector<int64_t>{6});
    EXPECT_EQ(find(table, "model.layers.0.self_attn.o_proj.bias"), nullptr);
    const TensorRule* const q_norm = find(table, "model.layers.1.self_attn.q_norm.weight");
    ASSERT_NE(q_norm, nullptr);
    EXPECT_EQ(q_norm->shape, std::vector<int64_t>{6});
    EXPECT_EQ(table.size(), 2U * (9 + 3 + 2) + 2);
}

TEST(TensorTable, ListsTheLinearsThatTheModelHas) {
    ModelSpec spec = model();
    spec.linears = {Projection::q, Projection::v, Projection::o, Projection::up, Projection::down};
    const auto table = tensor_table(spec);
    EXPECT_EQ(find(table, "model.layers.0.self_attn.k_proj.weight"), nullptr);
    EXPECT_EQ(find(table, "model.layers.1.mlp.gate_proj.weight"), nullptr);
    EXPECT_NE(find(table, "model.layers.1.mlp.up_proj.weight"), nullptr);
    EXPECT_EQ(table.size(), 2U * (2 + 5) + 3);
}

TEST(TensorTable, ListsTheExpertsOfLayersThatHaveThem) {
    ModelSpec spec = model();
    spec.layers.assign(2, {});
    spec.layers[1].experts = true;
    spec.experts = {.count = 3, .top_k = 2, .intermediate_size = 4};
    const auto table = tensor_table(spec);
    EXPECT_EQ(table.size(), 3U + 9 + 6 + 1 + 3 * 3);
    const TensorRule* const up = find(table, "model.layers.1.mlp.experts.2.up_proj.weight");
    ASSERT_NE(up, nullptr);
    EXPECT_EQ(up->id, (LinearId{1, Projection::up, 2}));
    EXPECT_EQ(up->shape, (std::vector<int64_t>{4, 8}));
    EXPECT_TRUE(up->may_be_quantised);
    const TensorRule* const router = find(table, "model.layers.1.mlp.gate.weight");
    ASSERT_NE(router, nullptr);
    EXPECT_EQ(router->role, TensorRole::router);
    EXPECT_EQ(router->shape, (std::vector<int64_t>{3, 8}));
    EXPECT_FALSE(router->may_be_quantised);
    EXPECT_NE(find(table, "model.layers.0.mlp.up_proj.weight"), nullptr);
    EXPECT_EQ(find(table, "model.layers.1.mlp.up_proj.weight"), nullptr);
    EXPECT_EQ(find(table, "model.layers.0.mlp.gate.weight"), nullptr);
}

TEST(TensorTable, ListsSinksAndTheBiasesOfExpertsAndRouters) {
    ModelSpec spec = model();
    spec.layers.assign(2, {});
    spec.layers[1].experts = true;
    spec.attention_sinks = spec.mlp_bias = true;
    spec.experts = {.count = 3, .top_k = 2, .intermediate_size = 4, .router = "router", .router_bias = true};
    const auto table = tensor_table(spec);
    const auto expect = [&](const char* name, TensorRole role, std::vector<int64_t> shape) {
        const TensorRule* const rule = find(table, name);
        ASSERT_NE(rule, nullptr) << name;
        EXPECT_EQ(rule->role, role) << name;
        EXPECT_EQ(rule->shape, shape) << name;
    };
    expect("model.layers.0.self_attn.sinks", TensorRole::sinks, {spec.num_heads});
    expect("model.layers.1.mlp.router.weight", TensorRole::router, {3, 8});
    expect("model.layers.1.mlp.router.bias", TensorRole::router_bias, {3});
    expect("model.layers.1.mlp.experts.2.up_proj.bias", TensorRole::bias, {4});
    EXPECT_TRUE(is_vector(TensorRole::sinks) && is_vector(TensorRole::q_norm) && !is_norm(TensorRole::sinks));
}

TEST(TensorTable, IgnoresOnlyWhatNobodyNeeds) {
    ModelSpec spec = model();
    EXPECT_TRUE(is_ignorable_tensor(spec, "model.layers.0.self_attn.rotary_emb.inv_freq"));
    EXPECT_FALSE(is_ignorable_tensor(spec, "lm_head.weight"));
    EXPECT_FALSE(is_ignorable_tensor(spec, "model.layers.0.self_attn.q_proj.weight"));
    EXPECT_FALSE(is_ignorable_tensor(spec, "rotary_emb.inv_freq.more"));
    spec.tie_word_embeddings = true;
    EXPECT_TRUE(is_ignorable_tensor(spec, "lm_head.weight"));
}

}  // namespace
}  // namespace unsloth::spec
