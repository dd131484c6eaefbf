// Files config.json, read and changed.
#pragma once

#include "unsloth/formats/hf_config.h"

#include "formats/support.h"
#include "unsloth/spec/tensor_table.h"

namespace unsloth::formats {

using namespace test;
using nlohmann::json;

inline spec::ModelSpec parsed(const json& config) {
    return parse_model_spec(config.dump(), "config.json");
}
inline json config_of(const std::string& name) {
    return golden_json("formats/configs/" + name + ".json");
}
inline spec::ModelSpec golden_spec(const std::string& name) {
    return parsed(config_of(name));
}

inline json changed_config(const std::string& name, const json& changes) {
    json config = config_of(name);
    for (const auto& [key, value] : changes.items()) config[key] = value;
    return config;
}
inline json without_key(json config, const std::string& key) {
    config.erase(key);
    return config;
}

inline std::vector<int64_t> windows_of(const spec::ModelSpec& spec) {
    std::vector<int64_t> all;
    for (const spec::LayerSpec& layer : spec.layers) all.push_back(layer.window);
    return all;
}

inline void expect_equal(const spec::ModelSpec& a, const spec::ModelSpec& b) {
    EXPECT_EQ(a.model_type, b.model_type);
    EXPECT_EQ(a.hidden_size, b.hidden_size);
    EXPECT_EQ(a.intermediate_size, b.intermediate_size);
    EXPECT_EQ(a.num_layers, b.num_layers);
    EXPECT_EQ(a.num_heads, b.num_heads);
    EXPECT_EQ(a.num_kv_heads, b.num_kv_heads);
    EXPECT_EQ(a.head_dim, b.head_dim);
    EXPECT_EQ(a.vocab_size, b.vocab_size);
    EXPECT_EQ(a.max_position_embeddings, b.max_position_embeddings);
    EXPECT_EQ(a.rms_norm_eps, b.rms_norm_eps);
    EXPECT_EQ(a.tie_word_embeddings, b.tie_word_embeddings);
    EXPECT_EQ(a.qkv_bias, b.qkv_bias);
    EXPECT_EQ(a.o_bias, b.o_bias);
    EXPECT_EQ(a.mlp_bias, b.mlp_bias);
    EXPECT_EQ(a.qk_norm, b.qk_norm);
    EXPECT_EQ(a.layers, b.layers);
    EXPECT_EQ(a.bos_token_id, b.bos_token_id);
    EXPECT_EQ(a.pad_token_id, b.pad_token_id);
    EXPECT_EQ(a.eos_token_ids, b.eos_token_ids);
    EXPECT_EQ(a.dtype, b.dtype);
    EXPECT_EQ(a.ropes[0].type, b.ropes[0].type);
    EXPECT_EQ(a.ropes[0].theta, b.ropes[0].theta);
    EXPECT_EQ(a.ropes[0].factor, b.ropes[0].factor);
    EXPECT_EQ(a.ropes[0].original_max_position_embeddings, b.ropes[0].original_max_position_embeddings);
    EXPECT_EQ(a.ropes[0].low_freq_factor, b.ropes[0].low_freq_factor);
    EXPECT_EQ(a.ropes[0].high_freq_factor, b.ropes[0].high_freq_factor);
    EXPECT_EQ(a.ropes[0].attention_factor, b.ropes[0].attention_factor);
    EXPECT_EQ(a.ropes[0].beta_fast, b.ropes[0].beta_fast);
    EXPECT_EQ(a.ropes[0].truncate, b.ropes[0].truncate);
}

inline json family_config(const std::string& family, const std::string& file = "model/config.json") {
    return golden_json("families/" + family + "/" + file);
}

}  // namespace unsloth::formats
