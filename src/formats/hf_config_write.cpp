#include <algorithm>

#include "formats/families/family.h"
#include "formats/json.h"
#include "unsloth/core/error.h"
#include "unsloth/formats/hf_config.h"

namespace unsloth::formats {
namespace {

const char* rope_type_name(spec::RopeSpec::Type type) {
    switch (type) {
        case spec::RopeSpec::Type::standard:
            return "default";
        case spec::RopeSpec::Type::linear:
            return "linear";
        case spec::RopeSpec::Type::dynamic:
            return "dynamic";
        case spec::RopeSpec::Type::yarn:
            return "yarn";
        case spec::RopeSpec::Type::llama3:
            return "llama3";
        case spec::RopeSpec::Type::longrope:
            return "longrope";
    }
    return "?";
}

template <class Value>
Json or_null(const std::optional<Value>& value) {
    return value ? Json(*value) : Json(nullptr);
}

/// The options of a scaled rope, without theta; null for the standard one.
Json rope_scaling(const spec::RopeSpec& rope) {
    if (rope.type == spec::RopeSpec::Type::standard) return nullptr;
    Json json = {{"rope_type", rope_type_name(rope.type)}, {"factor", rope.factor}};
    if (rope.original_max_position_embeddings > 0)
        json["original_max_position_embeddings"] = rope.original_max_position_embeddings;
    if (rope.type == spec::RopeSpec::Type::llama3) {
        json["low_freq_factor"] = rope.low_freq_factor;
        json["high_freq_factor"] = rope.high_freq_factor;
    } else if (rope.type == spec::RopeSpec::Type::yarn) {
        json["beta_fast"] = rope.beta_fast;
        json["beta_slow"] = rope.beta_slow;
        json["truncate"] = rope.truncate;
        if (rope.attention_factor) json["attention_factor"] = *rope.attention_factor;
        if (rope.mscale) json["mscale"] = *rope.mscale;
        if (rope.mscale_all_dim) json["mscale_all_dim"] = *rope.mscale_all_dim;
    } else if (rope.type == spec::RopeSpec::Type::longrope) {
        json["short_factor"] = rope.short_factor;
        json["long_factor"] = rope.long_factor;
        if (rope.attention_factor) json["attention_factor"] = *rope.attention_factor;
    }
    return json;
}

void write_rope(const spec::RopeSpec& rope, Json& config) {
    const Json scaling = rope_scaling(rope);
    config.erase("original_max_position_embeddings");  // beside the object it would win
    if (!config.contains("rope_parameters")) {
        config["rope_theta"] = rope.theta;
        config["rope_scaling"] = scaling;
        return;
    }
    config.erase("rope_theta");
    config.erase("rope_scaling");
    Json parameters = scaling.is_null() ? Json{{"rope_type", "default"}} : scaling;
    parameters["rope_theta"] = rope.theta;
    config["rope_parameters"] = std::move(parameters);
}

void write_tokens(const spec::ModelSpec& spec, Json& config) {
    config["bos_token_id"] = or_null(spec.bos_token_id);
    config["pad_token_id"] = or_null(spec.pad_token_id);
    if (spec.eos_token_ids.size() > 1) {
        config["eos_token_id"] = spec.eos_token_ids;
    } else {
        config["eos_token_id"] = spec.eos_token_ids.empty() ? Json(nullptr) : Json(spec.eos_token_ids[0]);
    }
}

void write_structure(const spec::ModelSpec& spec, Json& config) {
    const Family& family = family_of(spec);
    config["architectures"] = {family.class_name};
    config["model_type"] = family.model_type;
    config["hidden_act"] = "silu";
    config["hidden_size"] = spec.hidden_size;
    config["intermediate_size"] = spec.intermediate_size;
    config["num_hidden_layers"] = spec.num_layers;
    config["num_attention_heads"] = spec.num_heads;
    config["num_key_value_heads"] = spec.num_kv_heads;
    config["vocab_size"] = spec.vocab_size;
    config["max_position_embeddings"] = spec.max_position_embeddings;
    config["rms_norm_eps"] = spec.rms_norm_eps;
    config["tie_word_embeddings"] = spec.tie_word_embeddings;
    if (family.head_dim_key || spec.num_heads * spec.head_dim != spec.hidden_size || config.contains("head_dim"))
        config["head_dim"] = spec.head_dim;
    if (family.attention_bias_key) config["attention_bias"] = spec.qkv_bias;
    if (family.mlp_bias_key) config["mlp_bias"] = spec.mlp_bias;
}

Json quantization_json(const QuantizationConfig& config) {
    return {
        {"quant_method", config.quant_method},
        {"load_in_4bit", config.load_in_4bit},
        {"load_in_8bit", config.load_in_8bit},
        {"_load_in_4bit", config.load_in_4bit},
        {"_load_in_8bit", config.load_in_8bit},
        {"bnb_4bit_quant_type", config.bnb_4bit_quant_type},
        {"bnb_4bit_use_double_quant", config.bnb_4bit_use_double_quant},
        {"bnb_4bit_compute_dtype", config.bnb_4bit_compute_dtype},
        {"bnb_4bit_quant_storage", config.bnb_4bit_quant_storage},
        {"llm_int8_enable_fp32_cpu_offload", false},
        {"llm_int8_has_fp16_weight", false},
        {"llm_int8_skip_modules", config.llm_int8_skip_modules ? Json(*config.llm_int8_skip_modules) : Json(nullptr)},
        {"llm_int8_threshold", 6.0}};
}

Json fresh_config() {
    return {{"attention_dropout", 0.0}, {"initializer_range", 0.02}, {"use_cache", true}};
}

}  // namespace

std::string write_model_config(const spec::ModelSpec& spec, const std::optional<QuantizationConfig>& quantization,
                               const std::string& original) {
    check_model_spec(spec, "the model to be written");
    const std::string source = "the original config.json";
    Json config = original.empty() ? fresh_config() : parse_json<Json>(original, source);
    // An original's own spelling of rope and layers says more than a ModelSpec: it stays unless the meaning changed.
    bool keep_rope = false, keep_layers = false;
    if (!original.empty()) {
        const spec::ModelSpec before = parse_model_spec(original, source);
        const auto same = [](const spec::RopeSpec& a, const spec::RopeSpec& b) {
            return a.theta == b.theta && rope_scaling(a) == rope_scaling(b);
        };
        keep_rope = std::ranges::equal(before.ropes, spec.ropes, same);
        keep_layers = before.layers == spec.layers;
    }
    write_structure(spec, config);
    if (!keep_rope) write_rope(spec.ropes.front(), config);
    if (const LayerKeys* const layers = family_of(spec).layers; layers != nullptr && !keep_layers)
        layers->write(spec, config);
    write_tokens(spec, config);
    const bool new_name = config.contains("dtype");
    config[new_name ? "dtype" : "torch_dtype"] = spec::name_of(spec.dtype);
    if (new_name) config.erase("torch_dtype");
    config.erase("quantization_config");
    if (quantization) config["quantization_config"] = quantization_json(*quantization);
    return config.dump(2) + "\n";
}

}  // namespace unsloth::formats
