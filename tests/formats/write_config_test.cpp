// A config.json that is written says the same.
#include "formats/hf_config_support.h"

namespace unsloth::formats {
namespace {

using namespace test;
using nlohmann::json;

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
        const json original = changed_config(
            name, {{"our_own_key", {1, 2}}, {"quantization_config", {{"quant_method", "bitsandbytes"}}}});
        json expected = original;
        expected.erase("quantization_config");
        EXPECT_EQ(json::parse(write_model_config(parsed(original), {}, original.dump())), expected);
    }
    for (const char* const family : {"granite", "ministral3", "phi3", "phi3_longrope", "gemma3_text", "olmo3"}) {
        const json original = family_config(family);
        EXPECT_EQ(json::parse(write_model_config(parsed(original), {}, original.dump())), original) << family;
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
