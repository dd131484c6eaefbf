#include "unsloth/formats/hf_config.h"

#include <cmath>

#include "formats/support.h"
#include "unsloth/spec/tensor_table.h"

namespace unsloth::formats {
namespace {

using namespace test;
using nlohmann::json;

spec::ModelSpec parse(const json& config) {
    return parse_model_spec(config.dump(), "config.json");
}
json config_of(const std::string& name) {
    return golden_json("formats/configs/" + name + ".json");
}
spec::ModelSpec golden_spec(const std::string& name) {
    return parse(config_of(name));
}

json changed(const std::string& name, const json& changes) {
    json config = config_of(name);
    for (const auto& [key, value] : changes.items()) config[key] = value;
    return config;
}
json without(json config, const std::string& key) {
    config.erase(key);
    return config;
}

std::vector<int64_t> windows(const spec::ModelSpec& spec) {
    std::vector<int64_t> all;
    for (const spec::LayerSpec& layer : spec.layers) all.push_back(layer.window);
    return all;
}

void expect_equal(const spec::ModelSpec& a, const spec::ModelSpec& b) {
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

TEST(HfConfig, ReadsBothGenerationsAlike) {
    for (const char* const name : {"small_llama", "tiny_llama"}) {
        const spec::ModelSpec spec = golden_spec(name);
        expect_equal(spec, golden_spec(std::string(name) + "_v4_names"));
        EXPECT_EQ(spec.dtype, spec::DType::bf16);
        EXPECT_EQ(spec.bos_token_id, 1);
        EXPECT_EQ(spec.eos_token_ids, std::vector<int64_t>{2});
        EXPECT_EQ(spec.pad_token_id, std::nullopt);
    }
    const spec::ModelSpec tiny = golden_spec("tiny_llama");
    EXPECT_EQ(tiny.ropes[0].type, spec::RopeSpec::Type::llama3);
    EXPECT_EQ(tiny.ropes[0].theta, 500000.0);
    EXPECT_EQ(tiny.ropes[0].factor, 8.0);
    EXPECT_EQ(tiny.ropes[0].low_freq_factor, 1.0);
    EXPECT_EQ(tiny.ropes[0].high_freq_factor, 4.0);
    EXPECT_EQ(tiny.ropes[0].original_max_position_embeddings, 8192);
    EXPECT_EQ(tiny.intermediate_size, 688);
    EXPECT_EQ(tiny.num_layers, 4);
    EXPECT_EQ(tiny.rms_norm_eps, 1e-5);
}

TEST(HfConfig, ReadsEveryArchitecture) {
    const spec::ModelSpec bias = golden_spec("llama_bias");
    EXPECT_TRUE(bias.qkv_bias && bias.o_bias && bias.mlp_bias);
    EXPECT_FALSE(bias.qk_norm || bias.tie_word_embeddings);
    EXPECT_TRUE(golden_spec("llama_tied").tie_word_embeddings);
    const spec::ModelSpec mistral = golden_spec("mistral_window");
    EXPECT_EQ(mistral.model_type, "mistral");
    EXPECT_EQ(windows(mistral), (std::vector<int64_t>{16, 16}));
    EXPECT_EQ(mistral.ropes[0].theta, 1e6);
    const spec::ModelSpec qwen2 = golden_spec("qwen2");
    EXPECT_TRUE(qwen2.qkv_bias && !qwen2.o_bias && !qwen2.mlp_bias && !qwen2.qk_norm);
    EXPECT_EQ(qwen2.head_dim, 16) << "hidden_size / num_attention_heads";
    EXPECT_EQ(windows(qwen2), (std::vector<int64_t>{0, 0}));
    const spec::ModelSpec qwen3 = golden_spec("qwen3");
    EXPECT_TRUE(qwen3.qk_norm && !qwen3.qkv_bias && !qwen3.o_bias);
    EXPECT_EQ(qwen3.q_size(), 256);
    EXPECT_TRUE(parse(changed("qwen3", {{"attention_bias", true}})).o_bias);
}

TEST(HfConfig, FillsInTheDefaultsOfTheClasses) {
    const json llama = config_of("small_llama_v4_names");
    EXPECT_EQ(parse(without(llama, "num_key_value_heads")).num_kv_heads, 4);
    EXPECT_EQ(parse(without(llama, "head_dim")).head_dim, 32);
    EXPECT_EQ(parse(without(llama, "rope_theta")).ropes[0].theta, 10000.0);
    EXPECT_EQ(parse(without(llama, "torch_dtype")).dtype, spec::DType::f32);
    EXPECT_EQ(parse(without(llama, "rms_norm_eps")).rms_norm_eps, 1e-6);
    EXPECT_EQ(parse(without(config_of("qwen3"), "head_dim")).head_dim, 128);
    EXPECT_EQ(parse(without(config_of("mistral_window"), "sliding_window")).layers[0].window, 4096);
    EXPECT_EQ(parse(changed("mistral_window", {{"sliding_window", nullptr}})).layers[0].window, 0);
    expect_error("json.wrong-value", {"num_key_value_heads"},
                 [] { parse(without(config_of("qwen2"), "num_key_value_heads")); });
}

TEST(HfConfig, ReadsWindowsLayerByLayer) {
    const json window = {{"use_sliding_window", true}, {"sliding_window", 8}};
    auto by_index = changed("qwen2", window);
    by_index["max_window_layers"] = 1;
    EXPECT_EQ(windows(parse(without(by_index, "layer_types"))), (std::vector<int64_t>{0, 8}));
    by_index["layer_types"] = {"sliding_attention", "full_attention"};
    EXPECT_EQ(windows(parse(by_index)), (std::vector<int64_t>{8, 0}));
    by_index["layer_types"] = {"full_attention"};
    expect_error("model.bad-config", {"layer_types", "1", "2"}, [&] { parse(by_index); });
    by_index["layer_types"] = {"full_attention", "chunked_attention"};
    expect_error("model.unsupported", {"chunked_attention"}, [&] { parse(by_index); });
    auto unused = changed("qwen3", {{"sliding_window", 8}, {"max_window_layers", 0}});
    EXPECT_EQ(windows(parse(without(unused, "layer_types"))), (std::vector<int64_t>{0, 0}));
    unused["layer_types"] = {"sliding_attention", "full_attention"};
    expect_error("model.bad-config", {"layer 0", "use_sliding_window"}, [&] { parse(unused); });
    expect_error("json.wrong-value", {"sliding_window", "-3"},
                 [] { parse(changed("mistral_window", {{"sliding_window", -3}})); });
}

TEST(HfConfig, ARunScalesPositionsInsteadOfConfigJson) {
    const std::string original = changed("small_llama_v4_names", {{"max_position_embeddings", 64}}).dump();
    const auto scaled = [&](const json& scaling) {
        spec::ModelSpec spec = parse_model_spec(original, "test");
        spec.ropes[0].original_max_position_embeddings = 0;
        set_rope_scaling(spec, scaling.dump(), "model.rope_scaling");
        return spec;
    };
    const spec::ModelSpec before = parse_model_spec(original, "test");
    for (const char* type : {"linear", "yarn"}) {
        const spec::ModelSpec spec = scaled({{"rope_type", type}, {"factor", 4}});
        EXPECT_EQ(spec.max_position_embeddings, 256) << type;
        EXPECT_EQ(spec.ropes[0].original_max_position_embeddings, 64) << type;
        EXPECT_EQ(spec.ropes[0].theta, before.ropes[0].theta) << type;
        const spec::ModelSpec again = parse_model_spec(write_model_config(spec, {}, original), "test");
        EXPECT_EQ(again.max_position_embeddings, 256) << type;
        EXPECT_EQ(rope_frequencies(again, 200).inv_freq, rope_frequencies(spec, 200).inv_freq) << type;
        EXPECT_NE(rope_frequencies(spec, 200).inv_freq, rope_frequencies(before, 200).inv_freq) << type;
    }
    // What is scaled already is scaled further, or in another way from the positions that it has.
    spec::ModelSpec further = scaled({{"rope_type", "linear"}, {"factor", 2}});
    set_rope_scaling(further, R"({"rope_type": "linear", "factor": 4})", "test");
    EXPECT_EQ(further.max_position_embeddings, 256);
    set_rope_scaling(further, R"({"rope_type": "yarn", "factor": 2})", "test");
    EXPECT_EQ(further.max_position_embeddings, 512);
    EXPECT_EQ(further.ropes[0].original_max_position_embeddings, 256);
    const spec::ModelSpec dynamic = scaled({{"rope_type", "dynamic"}, {"factor", 4}});
    EXPECT_EQ(dynamic.max_position_embeddings, 64);
    EXPECT_EQ(dynamic.usable_positions(), 256);
    json longrope = {
        {"rope_type", "longrope"}, {"factor", 2}, {"short_factor", json::array()}, {"long_factor", json::array()}};
    for (int64_t i = 0; i < before.head_dim / 2; ++i) {
        longrope["short_factor"].push_back(1.0);
        longrope["long_factor"].push_back(1.5 + static_cast<double>(i));
    }
    const spec::ModelSpec searched = scaled(longrope);
    EXPECT_EQ(searched.max_position_embeddings, 128);
    const spec::ModelSpec again = parse_model_spec(write_model_config(searched, {}, original), "test");
    EXPECT_EQ(again.ropes[0].long_factor, searched.ropes[0].long_factor);
    expect_error("model.bad-config", {"model.rope_scaling", "rope_type"}, [&] { scaled({{"factor", 2}}); });
    longrope["long_factor"].erase(0);
    expect_error("json.wrong-value", {"model.rope_scaling", "long_factor"}, [&] { scaled(longrope); });
    expect_error("json.wrong-value", {"model.rope_scaling", "factor"}, [&] { scaled({{"rope_type", "linear"}}); });
}

TEST(HfConfig, ReadsEveryRopeType) {
    const auto rope = [](const json& scaling) {
        return parse(changed("small_llama_v4_names", {{"rope_scaling", scaling}})).ropes[0];
    };
    EXPECT_EQ(rope({{"type", "linear"}, {"factor", 2}}).type, spec::RopeSpec::Type::linear);
    EXPECT_EQ(rope({{"rope_type", "dynamic"}, {"factor", 2.5}}).factor, 2.5);
    EXPECT_EQ(rope({{"rope_type", "default"}}).type, spec::RopeSpec::Type::standard);
    const spec::RopeSpec yarn = rope({{"type", "yarn"},
                                      {"original_max_position_embeddings", 32768},
                                      {"attention_factor", 1.5},
                                      {"truncate", false}});
    EXPECT_EQ(yarn.factor, 4.0) << "131072 / 32768";
    EXPECT_EQ(yarn.attention_factor, 1.5);
    EXPECT_EQ(yarn.beta_fast, 32.0);
    EXPECT_FALSE(yarn.truncate);
    const auto refuse = [&](const json& scaling, const std::string& word) {
        expect_input_error({word}, [&] { rope(scaling); });
    };
    refuse({{"rope_type", "spiral"}, {"factor", 2}}, "spiral");
    refuse({{"rope_type", "longrope"}, {"factor", 2}}, "short_factor");
    refuse({{"rope_type", "linear"}}, "factor");
    refuse({{"rope_type", "linear"}, {"factor", 0.5}}, "factor");
    refuse({{"rope_type", "linear"}, {"factor", "2"}}, "factor");
    refuse({{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}},
           "high_freq_factor");
    refuse({{"rope_type", "llama3"}, {"factor", 8}}, "low_freq_factor");
    refuse({{"rope_type", "yarn"}, {"factor", 2}, {"beta_fast", 0.5}}, "beta_fast");
    refuse({{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}, "partial_rotary_factor");
    refuse("linear", "rope_scaling");
    expect_error("json.wrong-value", {"full_attention"}, [] {
        parse(changed("small_llama", {{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}}));
    });
    expect_error("model.bad-config", {"rope_theta"},
                 [] { parse(changed("small_llama_v4_names", {{"rope_theta", 0}})); });
}

/// What a config states twice is taken from the place that transformers 5 takes it from.
TEST(HfConfig, TakesARopesFactsFromThePlacesThatTransformersDoes) {
    const json golden = golden_json("rope/two_places.json");
    ASSERT_GE(golden.at("cases").size(), 25U);
    for (const auto& [name, entry] : golden.at("cases").items()) {
        SCOPED_TRACE(name);
        json config = golden.at("base");
        config.update(entry.at("config"));
        const spec::ModelSpec spec = parse(config);
        const auto expect_frequencies = [&entry = entry](const spec::ModelSpec& model) {
            const spec::RopeFrequencies found = rope_frequencies(model, 200);
            const auto expected = entry.at("inv_freq").get<std::vector<double>>();
            ASSERT_EQ(found.inv_freq.size(), expected.size());
            for (std::size_t i = 0; i < expected.size(); ++i)
                EXPECT_NEAR(found.inv_freq[i], expected[i], 5e-7 * expected[i]) << "frequency " << i;
            EXPECT_NEAR(found.attention_scaling, entry.at("attention_scaling").get<double>(), 1e-6);
        };
        expect_frequencies(spec);
        // What is written is read again as it was meant, in whatever words the original said it.
        spec::ModelSpec other = spec;
        other.ropes[0].theta *= 2;
        other = parse_model_spec(write_model_config(other, {}, config.dump()), "written");
        other.ropes[0].theta /= 2;
        expect_frequencies(other);
    }
}

json family_config(const std::string& family, const std::string& file = "model/config.json") {
    return golden_json("families/" + family + "/" + file);
}

void expect_same_family(const spec::ModelSpec& a, const spec::ModelSpec& b) {
    expect_equal(a, b);
    EXPECT_EQ(a.linears, b.linears);
    EXPECT_EQ(a.norms, b.norms);
    EXPECT_EQ(a.gate_activation, b.gate_activation);
    EXPECT_EQ(a.norm_offset, b.norm_offset);
    EXPECT_EQ(a.qk_norm_of_all_heads, b.qk_norm_of_all_heads);
    EXPECT_EQ(a.embedding_multiplier, b.embedding_multiplier);
    EXPECT_EQ(a.residual_multiplier, b.residual_multiplier);
    EXPECT_NEAR(a.score_scale.value_or(0), b.score_scale.value_or(0), 1e-12);
    EXPECT_EQ(a.logits_divisor, b.logits_divisor);
    EXPECT_EQ(a.experts, b.experts);
    EXPECT_EQ(a.gate_limit, b.gate_limit);
    EXPECT_EQ(a.attention_sinks, b.attention_sinks);
    EXPECT_EQ(a.mlp_bias, b.mlp_bias);
    EXPECT_EQ(a.layers, b.layers);
    ASSERT_EQ(a.ropes.size(), b.ropes.size());
    for (std::size_t i = 0; i < a.ropes.size(); ++i) {
        EXPECT_EQ(a.ropes[i].query_beta, b.ropes[i].query_beta);
        for (const int64_t length : {8, 90})
            EXPECT_EQ(rope_frequencies(a, length, i).inv_freq, rope_frequencies(b, length, i).inv_freq);
    }
}

TEST(HfConfig, ReadsFamiliesInTheWordsOfBothGenerations) {
    for (const char* const family :
         {"granite", "phi3", "phi3_longrope", "gemma3_text", "olmo3", "qwen3_moe", "qwen3_moe_step2", "gpt_oss"}) {
        SCOPED_TRACE(family);
        const spec::ModelSpec spec = parse(family_config(family));
        expect_same_family(parse(family_config(family, "config_v4_names.json")), spec);
        expect_same_family(parse_model_spec(write_model_config(spec), "written"), spec);
    }
    const spec::ModelSpec gemma = parse(family_config("gemma3_text")), olmo = parse(family_config("olmo3"));
    EXPECT_EQ(windows(gemma), (std::vector<int64_t>{9, 9, 9, 9, 9, 0, 9}));
    EXPECT_EQ(gemma.layers[0].rope, 1);
    EXPECT_EQ(gemma.ropes[0].factor, 8.0);
    EXPECT_EQ(gemma.ropes[1].theta, 10000.0);
    EXPECT_NEAR(*gemma.score_scale, 1 / std::sqrt(20.0), 1e-15);
    EXPECT_EQ(gemma.norms, spec::NormPlacement::both);
    EXPECT_EQ(olmo.norms, spec::NormPlacement::after);
    EXPECT_EQ(olmo.ropes[1].type, spec::RopeSpec::Type::standard);
    const spec::ModelSpec ministral = parse(family_config("ministral3"));
    EXPECT_EQ(ministral.ropes[0].query_beta, 0.3);
    EXPECT_EQ(query_multiplier(ministral, ministral.ropes[0], 15), 1.0F);
    EXPECT_NEAR(query_multiplier(ministral, ministral.ropes[0], 33), 1 + 0.3 * std::log(3.0), 1e-6);
    const spec::ModelSpec phi = parse(family_config("phi3_longrope"));
    EXPECT_EQ(phi.rotary_dim(phi.ropes[0]), 24);
    EXPECT_EQ(phi.ropes[0].factor, 4.0);
    json su = family_config("phi3_longrope", "config_v4_names.json");
    su["rope_scaling"]["type"] = "su";
    expect_same_family(parse(su), phi);
    json smol = config_of("small_llama_v4_names");
    smol["model_type"] = "smollm3";
    smol["architectures"] = {"SmolLM3ForCausalLM"};
    smol["num_hidden_layers"] = 8;
    const spec::ModelSpec smollm3 = parse(smol);
    for (std::size_t layer = 0; layer < 8; ++layer)
        EXPECT_EQ(smollm3.layers[layer].rope, layer % 4 == 3 ? spec::LayerSpec::no_rope : 0);
}

TEST(HfConfig, ReadsWhichLayersHaveExperts) {
    const auto with_experts = [](const spec::ModelSpec& spec) {
        std::vector<bool> experts;
        for (int64_t layer = 0; layer < spec.num_layers; ++layer) experts.push_back(spec.has_experts(layer));
        return experts;
    };
    json config = family_config("qwen3_moe");
    const spec::ModelSpec spec = parse(config);
    EXPECT_EQ(with_experts(spec), (std::vector<bool>{false, true, true, true}));
    EXPECT_EQ(spec.experts, (spec::ExpertsSpec{8, 3, 40, spec::RouterWeights::of_chosen}));
    config["output_router_logits"] = true;
    EXPECT_EQ(parse(config).experts->router_aux, 0.001);
    config["router_aux_loss_coef"] = 0.02;
    EXPECT_EQ(parse(config).experts->router_aux, 0.02);
    config["router_aux_loss_coef"] = -1;
    expect_input_error({"router_aux_loss_coef", "at least 0"}, [&] { parse(config); });
    config["output_router_logits"] = false;
    EXPECT_TRUE(spec.has(spec::Projection::gate));
    const spec::ModelSpec step = parse(family_config("qwen3_moe_step2"));
    EXPECT_EQ(with_experts(step), (std::vector<bool>{false, true, false, true}));
    EXPECT_EQ(step.experts->weights, spec::RouterWeights::of_all);
    config["mlp_only_layers"] = json::array();
    EXPECT_FALSE(parse(config).has(spec::Projection::gate)) << "no layer has an MLP of its own";
    config["use_sliding_window"] = true;
    config["sliding_window"] = 9;
    EXPECT_EQ(windows(parse(config)), (std::vector<int64_t>{9, 9, 9, 9}));
    config["num_local_experts"] = 257;
    expect_input_error({"experts", "256"}, [&] { parse(config); });
    config["num_local_experts"] = 2;
    expect_input_error({"num_experts_per_tok", "1 to 2", "3"}, [&] { parse(config); });
}

TEST(HfConfig, ReadsWhatGptOssAdds) {
    json config = family_config("gpt_oss");
    const spec::ModelSpec spec = parse(config);
    EXPECT_EQ(windows(spec), (std::vector<int64_t>{7, 0, 7}));
    EXPECT_EQ(spec.gate_limit, 2.5);
    EXPECT_EQ(spec.experts->count, 6);
    EXPECT_TRUE(spec.attention_sinks && spec.qkv_bias && spec.o_bias && spec.mlp_bias && spec.experts->router_bias);
    EXPECT_EQ(spec.ropes.size(), 1U);
    EXPECT_FALSE(spec.ropes[0].truncate);
    for (const char* const left_out : {"layer_types", "swiglu_limit", "rope_parameters"}) config.erase(left_out);
    const spec::ModelSpec usual = parse(config);
    EXPECT_EQ(windows(usual), (std::vector<int64_t>{7, 0, 7}));
    EXPECT_EQ(usual.gate_limit, 7);
    EXPECT_EQ(usual.ropes[0].theta, 150000.0);
    EXPECT_EQ(usual.ropes[0].factor, 32.0);
    EXPECT_FALSE(usual.ropes[0].truncate);
    config["swiglu_alpha"] = 1.5;
    expect_error("model.unsupported", {"swiglu_alpha", "1.702"}, [&] { parse(config); });
    config.erase("swiglu_alpha");
    config["swiglu_limit"] = 0;
    expect_input_error({"swiglu_limit", "above 0"}, [&] { parse(config); });
}

TEST(HfConfig, ReadsTheTextPartOfAModelOfSeveral) {
    spec::ModelSpec gemma = parse(family_config("gemma3_text", "config_hub.json"));
    EXPECT_EQ(gemma.part_of, "gemma3");
    EXPECT_EQ(tensor_table(gemma)[0].hf_name, "language_model.model.embed_tokens.weight");
    EXPECT_TRUE(gemma.tie_word_embeddings);
    EXPECT_EQ(gemma.dtype, spec::DType::bf16);
    gemma.pad_token_id = 0;
    expect_same_family(gemma, parse(family_config("gemma3_text")));
    json hub = family_config("ministral3", "config_hub.json");
    const spec::ModelSpec ministral = parse(hub);
    EXPECT_FALSE(ministral.tie_word_embeddings);
    expect_same_family(ministral, parse(family_config("ministral3")));
    const json written = json::parse(write_model_config(ministral, {}, hub.dump()));
    EXPECT_EQ(written.at("vision_config"), hub.at("vision_config"));
    EXPECT_EQ(written.at("model_type"), "mistral3");
    expect_same_family(parse(written), ministral);
    hub.erase("tie_word_embeddings");
    EXPECT_TRUE(parse(hub).tie_word_embeddings) << "the part's own says nothing";
    expect_input_error({"text_config", "an object"}, [&] { parse(without(hub, "text_config")); });
}

TEST(HfConfig, RefusesByNameWhatAFamilysClassWouldDoOtherwise) {
    const auto refuse = [](const std::string& family, const json& changes, const std::vector<std::string>& words) {
        json config = family_config(family);
        config.update(changes);
        expect_input_error(words, [&] { parse(config); });
    };
    refuse("gemma3_text", {{"final_logit_softcapping", 30.0}}, {"final_logit_softcapping", "30", "gemma3_text"});
    refuse("gemma3_text", {{"attn_logit_softcapping", 50.0}}, {"attn_logit_softcapping"});
    refuse("gemma3_text", {{"use_bidirectional_attention", true}}, {"use_bidirectional_attention"});
    refuse("gemma3_text", {{"query_pre_attn_scalar", 0}}, {"query_pre_attn_scalar"});
    refuse("gemma3_text", {{"hidden_activation", "gelu"}}, {"hidden_activation", "gelu_pytorch_tanh"});
    refuse("granite", {{"logits_scaling", 0}}, {"logits_scaling"});
    refuse("phi3", {{"partial_rotary_factor", 1.5}, {"rope_parameters", nullptr}}, {"partial_rotary_factor"});
    refuse("phi3_longrope", {{"original_max_position_embeddings", -1}}, {"rope_parameters.factor"});
    refuse("olmo3", {{"layer_types", {"full_attention"}}}, {"layer_types", "1 entries for 4"});
    for (const char* const type : {"gemma2", "gemma4", "gemma4_text", "qwen3_5", "qwen3_next", "deepseek_v3",
                                   "glm4_moe_lite", "nemotron_h", "granitemoehybrid", "mistral4"})
        refuse("granite", {{"model_type", type}}, {"model_type", type});
}

TEST(HfConfig, TheTypeOfTheTensorsStandsInForAnAbsentOne) {
    const json llama = without(config_of("small_llama_v4_names"), "torch_dtype");
    EXPECT_EQ(parse_model_spec(llama.dump(), "test", spec::DType::f16).dtype, spec::DType::f16);
    json both = changed("small_llama", {{"dtype", "float16"}, {"torch_dtype", "float32"}});
    spec::ModelSpec spec = parse(both);
    EXPECT_EQ(spec.dtype, spec::DType::f16);
    spec.dtype = spec::DType::bf16;
    const json written = json::parse(write_model_config(spec, {}, both.dump()));
    EXPECT_EQ(written.at("dtype"), "bfloat16");
    EXPECT_FALSE(written.contains("torch_dtype"));
}

TEST(HfConfig, RefusesWhatItDoesNotKnowByName) {
    const auto refuse = [](const json& changes, const std::vector<std::string>& words) {
        expect_input_error(words, [&] { parse(changed("small_llama", changes)); });
    };
    refuse({{"model_type", "gemma2"}}, {"model_type", "gemma2", "llama, mistral, ministral3, qwen2"});
    refuse({{"model_type", nullptr}}, {"model_type"});
    refuse({{"architectures", {"LlamaForSequenceClassification"}}}, {"LlamaForSequenceClassification"});
    refuse({{"architectures", {"MistralForCausalLM"}}}, {"MistralForCausalLM"});
    refuse({{"hidden_act", "gelu"}}, {"hidden_act", "gelu"});
    refuse({{"dtype", "int8"}}, {"dtype", "int8"});
    refuse({{"text_config", {{"hidden_size", 64}}}}, {"text_config", "llama"});
    refuse({{"per_layer_config", {{"0", {{"hidden_size", 64}}}}}}, {"per_layer_config"});
    refuse({{"hidden_size", "128"}}, {"hidden_size", "\"128\""});
    refuse({{"hidden_size", -128}}, {"hidden_size", "-128"});
    refuse({{"hidden_size", nullptr}}, {"hidden_size", "nothing"});
    refuse({{"hidden_size", 128.5}}, {"hidden_size", "128.5"});
    refuse({{"hidden_size", 18446744073709551615U}}, {"hidden_size", "2^63"});
    refuse({{"intermediate_size", int64_t{1} << 40}}, {"intermediate_size"});
    refuse({{"num_hidden_layers", 1000000000}}, {"num_hidden_layers"});
    refuse({{"num_hidden_layers", 0}}, {"num_hidden_layers"});
    refuse({{"num_attention_heads", 0}}, {"num_attention_heads"});
    refuse({{"num_key_value_heads", 3}}, {"num_attention_heads 4", "num_key_value_heads 3"});
    refuse({{"num_key_value_heads", 8}}, {"num_key_value_heads"});
    refuse({{"head_dim", 31}}, {"head_dim", "even"});
    refuse({{"vocab_size", 0}}, {"vocab_size"});
    refuse({{"max_position_embeddings", -1}}, {"max_position_embeddings"});
    refuse({{"rms_norm_eps", 0}}, {"rms_norm_eps"});
    refuse({{"rms_norm_eps", "1e-6"}}, {"rms_norm_eps"});
    refuse({{"tie_word_embeddings", 1}}, {"tie_word_embeddings"});
    refuse({{"eos_token_id", {2, "x"}}}, {"eos_token_id"});
    expect_error("model.bad-config", {"hidden_size 128", "num_attention_heads 3"},
                 [] { parse(without(changed("small_llama", {{"num_attention_heads", 3}}), "head_dim")); });
    expect_error("json.syntax", {"config.json", "not valid JSON"}, [] { parse_model_spec("{", "config.json"); });
    expect_error("json.wrong-value", {"expected an object"}, [] { parse_model_spec("3", "config.json"); });
    expect_error("json.syntax", {"'vocab_size'", "twice"},
                 [] { parse_model_spec(R"({"vocab_size": 1, "vocab_size": 2})", "config.json"); });
    expect_error("disk.cannot-read", {"config.json"}, [] { read_model_spec("/nowhere"); });
    json many;
    for (int i = 0; i < 200'000; ++i)
        many[cat("key ", i)] = i;  // time with the square of their number would be minutes
    expect_error("json.too-large", {"more than 10000 keys"}, [&] { parse_model_spec(many.dump(), "config.json"); });
    const json lists(200'000, json::array());  // here too: nlohmann's parser with a callback takes that long
    expect_error("json.wrong-value", {"model_type"},
                 [&] { parse_model_spec(json{{"lists", lists}}.dump(), "config.json"); });
}

TEST(HfConfig, ReadsAListOfEndTokens) {
    EXPECT_EQ(parse(changed("small_llama", {{"eos_token_id", {5, 7}}})).eos_token_ids, (std::vector<int64_t>{5, 7}));
    EXPECT_TRUE(parse(changed("small_llama", {{"eos_token_id", nullptr}})).eos_token_ids.empty());
    EXPECT_EQ(parse(changed("small_llama", {{"pad_token_id", -1}})).pad_token_id, std::nullopt);
}

TEST(HfConfig, ReadsTheQuantisation) {
    const auto config = read_quantization_config(golden("formats/small_llama/nf4_dq"));
    ASSERT_TRUE(config);
    EXPECT_TRUE(config->load_in_4bit && config->bnb_4bit_use_double_quant && !config->load_in_8bit);
    EXPECT_EQ(config->bnb_4bit_quant_type, "nf4");
    EXPECT_EQ(config->bnb_4bit_compute_dtype, "bfloat16");
    EXPECT_EQ(parse_quantization_config(config_of("small_llama").dump(), "config.json"), std::nullopt);
    const auto refuse = [](const json& quantization, const std::string& word) {
        expect_input_error({word}, [&] {
            parse_quantization_config(json{{"quantization_config", quantization}}.dump(), "config.json");
        });
    };
    refuse({{"quant_method", "gptq"}}, "gptq");
    refuse({{"quant_method", "bitsandbytes"}, {"bnb_4bit_quant_type", "int4"}}, "int4");
    refuse(3, "quantization_config");
}

bool operator==(const QuantizationConfig& a, const QuantizationConfig& b) {
    return a.load_in_4bit == b.load_in_4bit && a.bnb_4bit_quant_type == b.bnb_4bit_quant_type &&
           a.bnb_4bit_use_double_quant == b.bnb_4bit_use_double_quant &&
           a.llm_int8_skip_modules == b.llm_int8_skip_modules;
}

TEST(WriteModelConfig, IsReadBackTheSame) {
    for (const char* const name :
         {"small_llama", "tiny_llama", "llama_bias", "llama_tied", "mistral_window", "qwen2", "qwen3"}) {
        SCOPED_TRACE(name);
        const spec::ModelSpec spec = golden_spec(name);
        expect_equal(parse_model_spec(write_model_config(spec), "written"), spec);
        EXPECT_EQ(parse_quantization_config(write_model_config(spec), "written"), std::nullopt);
    }
    spec::ModelSpec windowed = golden_spec("qwen2");
    windowed.layers = {{}, {.window = 8}};
    windowed.eos_token_ids = {3, 4};
    windowed.ropes[0] = {.type = spec::RopeSpec::Type::yarn,
                         .theta = 1e4,
                         .factor = 4.0,
                         .attention_factor = 1.25,
                         .beta_fast = 16.0,
                         .truncate = false};
    QuantizationConfig quantization;
    quantization.llm_int8_skip_modules = {"lm_head"};
    const std::string text = write_model_config(windowed, quantization);
    expect_equal(parse_model_spec(text, "written"), windowed);
    EXPECT_TRUE(*parse_quantization_config(text, "written") == quantization);
}

TEST(WriteModelConfig, KeepsWhatAnOriginalSays) {
    for (const char* const name : {"tiny_llama", "tiny_llama_v4_names", "mistral_window", "qwen2", "qwen3"}) {
        SCOPED_TRACE(name);
        const json original =
            changed(name, {{"our_own_key", {1, 2}}, {"quantization_config", {{"quant_method", "bitsandbytes"}}}});
        json expected = original;
        expected.erase("quantization_config");
        EXPECT_EQ(json::parse(write_model_config(parse(original), {}, original.dump())), expected);
    }
    for (const char* const family : {"granite", "ministral3", "phi3", "phi3_longrope", "gemma3_text", "olmo3"}) {
        const json original = family_config(family);
        EXPECT_EQ(json::parse(write_model_config(parse(original), {}, original.dump())), original) << family;
    }
    spec::ModelSpec spec = golden_spec("tiny_llama");
    spec.dtype = spec::DType::f32;
    spec.ropes[0] = {.type = spec::RopeSpec::Type::standard, .theta = 7000.0};
    const json written = json::parse(write_model_config(spec, {}, config_of("tiny_llama").dump()));
    EXPECT_EQ(written.at("dtype"), "float32");
    EXPECT_FALSE(written.contains("torch_dtype") || written.contains("rope_theta"));
    EXPECT_EQ(written.at("rope_parameters"), (json{{"rope_type", "default"}, {"rope_theta", 7000.0}}));
}

}  // namespace
}  // namespace unsloth::formats
