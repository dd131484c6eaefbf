#include "unsloth/formats/hf_config.h"

#include "formats/hf_config_support.h"

namespace unsloth::formats {
namespace {

using namespace test;
using nlohmann::json;

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
    EXPECT_EQ(windows_of(mistral), (std::vector<int64_t>{16, 16}));
    EXPECT_EQ(mistral.ropes[0].theta, 1e6);
    const spec::ModelSpec qwen2 = golden_spec("qwen2");
    EXPECT_TRUE(qwen2.qkv_bias && !qwen2.o_bias && !qwen2.mlp_bias && !qwen2.qk_norm);
    EXPECT_EQ(qwen2.head_dim, 16) << "hidden_size / num_attention_heads";
    EXPECT_EQ(windows_of(qwen2), (std::vector<int64_t>{0, 0}));
    const spec::ModelSpec qwen3 = golden_spec("qwen3");
    EXPECT_TRUE(qwen3.qk_norm && !qwen3.qkv_bias && !qwen3.o_bias);
    EXPECT_EQ(qwen3.q_size(), 256);
    EXPECT_TRUE(parsed(changed_config("qwen3", {{"attention_bias", true}})).o_bias);
}

TEST(HfConfig, FillsInTheDefaultsOfTheClasses) {
    const json llama = config_of("small_llama_v4_names");
    EXPECT_EQ(parsed(without_key(llama, "num_key_value_heads")).num_kv_heads, 4);
    EXPECT_EQ(parsed(without_key(llama, "head_dim")).head_dim, 32);
    EXPECT_EQ(parsed(without_key(llama, "rope_theta")).ropes[0].theta, 10000.0);
    EXPECT_EQ(parsed(without_key(llama, "torch_dtype")).dtype, spec::DType::f32);
    EXPECT_EQ(parsed(without_key(llama, "rms_norm_eps")).rms_norm_eps, 1e-6);
    EXPECT_EQ(parsed(without_key(config_of("qwen3"), "head_dim")).head_dim, 128);
    EXPECT_EQ(parsed(without_key(config_of("mistral_window"), "sliding_window")).layers[0].window, 4096);
    EXPECT_EQ(parsed(changed_config("mistral_window", {{"sliding_window", nullptr}})).layers[0].window, 0);
    expect_error("json.wrong-value", {"num_key_value_heads"},
                 [] { parsed(without_key(config_of("qwen2"), "num_key_value_heads")); });
}

TEST(HfConfig, ReadsWindowsLayerByLayer) {
    const json window = {{"use_sliding_window", true}, {"sliding_window", 8}};
    auto by_index = changed_config("qwen2", window);
    by_index["max_window_layers"] = 1;
    EXPECT_EQ(windows_of(parsed(without_key(by_index, "layer_types"))), (std::vector<int64_t>{0, 8}));
    by_index["layer_types"] = {"sliding_attention", "full_attention"};
    EXPECT_EQ(windows_of(parsed(by_index)), (std::vector<int64_t>{8, 0}));
    by_index["layer_types"] = {"full_attention"};
    expect_error("model.bad-config", {"layer_types", "1", "2"}, [&] { parsed(by_index); });
    by_index["layer_types"] = {"full_attention", "chunked_attention"};
    expect_error("model.unsupported", {"chunked_attention"}, [&] { parsed(by_index); });
    auto unused = changed_config("qwen3", {{"sliding_window", 8}, {"max_window_layers", 0}});
    EXPECT_EQ(windows_of(parsed(without_key(unused, "layer_types"))), (std::vector<int64_t>{0, 0}));
    unused["layer_types"] = {"sliding_attention", "full_attention"};
    expect_error("model.bad-config", {"layer 0", "use_sliding_window"}, [&] { parsed(unused); });
    expect_error("json.wrong-value", {"sliding_window", "-3"},
                 [] { parsed(changed_config("mistral_window", {{"sliding_window", -3}})); });
}

TEST(HfConfig, ARunScalesPositionsInsteadOfConfigJson) {
    const std::string original = changed_config("small_llama_v4_names", {{"max_position_embeddings", 64}}).dump();
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
        return parsed(changed_config("small_llama_v4_names", {{"rope_scaling", scaling}})).ropes[0];
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
        parsed(changed_config("small_llama", {{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}}));
    });
    expect_error("model.bad-config", {"rope_theta"},
                 [] { parsed(changed_config("small_llama_v4_names", {{"rope_theta", 0}})); });
}

/// What a config states twice is taken from the place that transformers 5 takes it from.
TEST(HfConfig, TakesARopesFactsFromThePlacesThatTransformersDoes) {
    const json golden = golden_json("rope/two_places.json");
    ASSERT_GE(golden.at("cases").size(), 25U);
    for (const auto& [name, entry] : golden.at("cases").items()) {
        SCOPED_TRACE(name);
        json config = golden.at("base");
        config.update(entry.at("config"));
        const spec::ModelSpec spec = parsed(config);
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

TEST(HfConfig, TheTypeOfTheTensorsStandsInForAnAbsentOne) {
    const json llama = without_key(config_of("small_llama_v4_names"), "torch_dtype");
    EXPECT_EQ(parse_model_spec(llama.dump(), "test", spec::DType::f16).dtype, spec::DType::f16);
    json both = changed_config("small_llama", {{"dtype", "float16"}, {"torch_dtype", "float32"}});
    spec::ModelSpec spec = parsed(both);
    EXPECT_EQ(spec.dtype, spec::DType::f16);
    spec.dtype = spec::DType::bf16;
    const json written = json::parse(write_model_config(spec, {}, both.dump()));
    EXPECT_EQ(written.at("dtype"), "bfloat16");
    EXPECT_FALSE(written.contains("torch_dtype"));
}

TEST(HfConfig, RefusesWhatItDoesNotKnowByName) {
    const auto refuse = [](const json& changes, const std::vector<std::string>& words) {
        expect_input_error(words, [&] { parsed(changed_config("small_llama", changes)); });
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
                 [] { parsed(without_key(changed_config("small_llama", {{"num_attention_heads", 3}}), "head_dim")); });
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
    EXPECT_EQ(parsed(changed_config("small_llama", {{"eos_token_id", {5, 7}}})).eos_token_ids,
              (std::vector<int64_t>{5, 7}));
    EXPECT_TRUE(parsed(changed_config("small_llama", {{"eos_token_id", nullptr}})).eos_token_ids.empty());
    EXPECT_EQ(parsed(changed_config("small_llama", {{"pad_token_id", -1}})).pad_token_id, std::nullopt);
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

}  // namespace
}  // namespace unsloth::formats
