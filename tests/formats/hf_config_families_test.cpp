// What config.json says in each model family.
#include <cmath>

#include "formats/hf_config_support.h"

namespace unsloth::formats {
namespace {

using namespace test;
using nlohmann::json;

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
    EXPECT_EQ(a.delta, b.delta);
    EXPECT_EQ(a.attention_output_gate, b.attention_output_gate);
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
        const spec::ModelSpec spec = parsed(family_config(family));
        expect_same_family(parsed(family_config(family, "config_v4_names.json")), spec);
        expect_same_family(parse_model_spec(write_model_config(spec), "written"), spec);
    }
    const spec::ModelSpec gemma = parsed(family_config("gemma3_text")), olmo = parsed(family_config("olmo3"));
    EXPECT_EQ(windows_of(gemma), (std::vector<int64_t>{9, 9, 9, 9, 9, 0, 9}));
    EXPECT_EQ(gemma.layers[0].rope, 1);
    EXPECT_EQ(gemma.ropes[0].factor, 8.0);
    EXPECT_EQ(gemma.ropes[1].theta, 10000.0);
    EXPECT_NEAR(*gemma.score_scale, 1 / std::sqrt(20.0), 1e-15);
    EXPECT_EQ(gemma.norms, spec::NormPlacement::both);
    EXPECT_EQ(olmo.norms, spec::NormPlacement::after);
    EXPECT_EQ(olmo.ropes[1].type, spec::RopeSpec::Type::standard);
    const spec::ModelSpec ministral = parsed(family_config("ministral3"));
    EXPECT_EQ(ministral.ropes[0].query_beta, 0.3);
    EXPECT_EQ(query_multiplier(ministral, ministral.ropes[0], 15), 1.0F);
    EXPECT_NEAR(query_multiplier(ministral, ministral.ropes[0], 33), 1 + 0.3 * std::log(3.0), 1e-6);
    const spec::ModelSpec phi = parsed(family_config("phi3_longrope"));
    EXPECT_EQ(phi.rotary_dim(phi.ropes[0]), 24);
    EXPECT_EQ(phi.ropes[0].factor, 4.0);
    json su = family_config("phi3_longrope", "config_v4_names.json");
    su["rope_scaling"]["type"] = "su";
    expect_same_family(parsed(su), phi);
    json smol = config_of("small_llama_v4_names");
    smol["model_type"] = "smollm3";
    smol["architectures"] = {"SmolLM3ForCausalLM"};
    smol["num_hidden_layers"] = 8;
    const spec::ModelSpec smollm3 = parsed(smol);
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
    const spec::ModelSpec spec = parsed(config);
    EXPECT_EQ(with_experts(spec), (std::vector<bool>{false, true, true, true}));
    EXPECT_EQ(spec.experts, (spec::ExpertsSpec{8, 3, 40, spec::RouterWeights::of_chosen}));
    config["output_router_logits"] = true;
    EXPECT_EQ(parsed(config).experts->router_aux, 0.001);
    config["router_aux_loss_coef"] = 0.02;
    EXPECT_EQ(parsed(config).experts->router_aux, 0.02);
    config["router_aux_loss_coef"] = -1;
    expect_input_error({"router_aux_loss_coef", "at least 0"}, [&] { parsed(config); });
    config["output_router_logits"] = false;
    EXPECT_TRUE(spec.has(spec::Projection::gate));
    const spec::ModelSpec step = parsed(family_config("qwen3_moe_step2"));
    EXPECT_EQ(with_experts(step), (std::vector<bool>{false, true, false, true}));
    EXPECT_EQ(step.experts->weights, spec::RouterWeights::of_all);
    config["mlp_only_layers"] = json::array();
    EXPECT_FALSE(parsed(config).has(spec::Projection::gate)) << "no layer has an MLP of its own";
    config["use_sliding_window"] = true;
    config["sliding_window"] = 9;
    EXPECT_EQ(windows_of(parsed(config)), (std::vector<int64_t>{9, 9, 9, 9}));
    config["num_local_experts"] = 257;
    expect_input_error({"experts", "256"}, [&] { parsed(config); });
    config["num_local_experts"] = 2;
    expect_input_error({"num_experts_per_tok", "1 to 2", "3"}, [&] { parsed(config); });
}

TEST(HfConfig, ReadsWhatGptOssAdds) {
    json config = family_config("gpt_oss");
    const spec::ModelSpec spec = parsed(config);
    EXPECT_EQ(windows_of(spec), (std::vector<int64_t>{7, 0, 7}));
    EXPECT_EQ(spec.gate_limit, 2.5);
    EXPECT_EQ(spec.experts->count, 6);
    EXPECT_TRUE(spec.attention_sinks && spec.qkv_bias && spec.o_bias && spec.mlp_bias && spec.experts->router_bias);
    EXPECT_EQ(spec.ropes.size(), 1U);
    EXPECT_FALSE(spec.ropes[0].truncate);
    for (const char* const left_out : {"layer_types", "swiglu_limit", "rope_parameters"}) config.erase(left_out);
    const spec::ModelSpec usual = parsed(config);
    EXPECT_EQ(windows_of(usual), (std::vector<int64_t>{7, 0, 7}));
    EXPECT_EQ(usual.gate_limit, 7);
    EXPECT_EQ(usual.ropes[0].theta, 150000.0);
    EXPECT_EQ(usual.ropes[0].factor, 32.0);
    EXPECT_FALSE(usual.ropes[0].truncate);
    config["swiglu_alpha"] = 1.5;
    expect_error("model.unsupported", {"swiglu_alpha", "1.702"}, [&] { parsed(config); });
    config.erase("swiglu_alpha");
    config["swiglu_limit"] = 0;
    expect_input_error({"swiglu_limit", "above 0"}, [&] { parsed(config); });
}

TEST(HfConfig, ReadsWhatQwen35Adds) {
    json config = family_config("qwen3_5_text");
    const spec::ModelSpec spec = parsed(config);
    const auto nets = [](const spec::ModelSpec& of) {
        std::vector<bool> all;
        for (const spec::LayerSpec& layer : of.layers) all.push_back(layer.delta);
        return all;
    };
    EXPECT_EQ(nets(spec), (std::vector<bool>{true, true, true, false, true}));
    EXPECT_EQ(spec.delta, (spec::DeltaSpec{2, 4, 16, 24, 4}));
    EXPECT_TRUE(spec.attention_output_gate && spec.qk_norm && spec.norm_offset == 1);
    EXPECT_EQ(spec.rotary_dim(spec.ropes[0]), 8);
    EXPECT_EQ(spec.out_features(spec::Projection::q), 2 * 4 * 32);
    expect_same_family(parse_model_spec(write_model_config(spec), "written"), spec);
    for (const char* const left_out : {"layer_types", "rope_parameters", "linear_conv_kernel_dim"})
        config.erase(left_out);
    const spec::ModelSpec usual = parsed(config);
    EXPECT_EQ(nets(usual), (std::vector<bool>{true, true, true, false, true}));
    EXPECT_EQ(usual.delta->taps, 4);
    EXPECT_EQ(usual.rotary_dim(usual.ropes[0]), 8);
    EXPECT_FALSE(usual.ropes[0].by_axes());
    config["full_attention_interval"] = 5;
    EXPECT_EQ(nets(parsed(config)), (std::vector<bool>{true, true, true, true, false}));
    const json whole{{"model_type", "qwen3_5"}, {"text_config", config}, {"vision_config", {{"depth", 2}}}};
    EXPECT_EQ(parsed(whole).part_of, "qwen3_5");
    EXPECT_EQ(tensor_table(parsed(whole))[0].hf_name, "model.language_model.embed_tokens.weight");
    config["linear_num_value_heads"] = 3;
    expect_input_error({"linear_num_value_heads", "multiple", "2"}, [&] { parsed(config); });
    config["linear_num_value_heads"] = 4;
    config["layer_types"] = {"linear_attention"};
    expect_input_error({"layer_types", "1 entries for 5"}, [&] { parsed(config); });
    config["layer_types"] = {"linear_attention", "mamba", "linear_attention", "full_attention", "full_attention"};
    expect_error("model.unsupported", {"layer_types", "mamba"}, [&] { parsed(config); });
}

TEST(HfConfig, ReadsTheTextPartOfAModelOfSeveral) {
    spec::ModelSpec gemma = parsed(family_config("gemma3_text", "config_hub.json"));
    EXPECT_EQ(gemma.part_of, "gemma3");
    EXPECT_EQ(tensor_table(gemma)[0].hf_name, "language_model.model.embed_tokens.weight");
    EXPECT_TRUE(gemma.tie_word_embeddings);
    EXPECT_EQ(gemma.dtype, spec::DType::bf16);
    gemma.pad_token_id = 0;
    expect_same_family(gemma, parsed(family_config("gemma3_text")));
    json hub = family_config("ministral3", "config_hub.json");
    const spec::ModelSpec ministral = parsed(hub);
    EXPECT_FALSE(ministral.tie_word_embeddings);
    expect_same_family(ministral, parsed(family_config("ministral3")));
    const json written = json::parse(write_model_config(ministral, {}, hub.dump()));
    EXPECT_EQ(written.at("vision_config"), hub.at("vision_config"));
    EXPECT_EQ(written.at("model_type"), "mistral3");
    expect_same_family(parsed(written), ministral);
    hub.erase("tie_word_embeddings");
    EXPECT_TRUE(parsed(hub).tie_word_embeddings) << "the part's own says nothing";
    expect_input_error({"text_config", "an object"}, [&] { parsed(without_key(hub, "text_config")); });
}

TEST(HfConfig, RefusesByNameWhatAFamilysClassWouldDoOtherwise) {
    const auto refuse = [](const std::string& family, const json& changes, const std::vector<std::string>& words) {
        json config = family_config(family);
        config.update(changes);
        expect_input_error(words, [&] { parsed(config); });
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
    for (const char* const type : {"gemma2", "gemma4", "gemma4_text", "qwen3_5_moe", "qwen3_next", "deepseek_v3",
                                   "glm4_moe_lite", "nemotron_h", "granitemoehybrid", "mistral4"})
        refuse("granite", {{"model_type", type}}, {"model_type", type});
}

}  // namespace
}  // namespace unsloth::formats
