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
    Json json;
    if (rope.by_axes()) {
        json["mrope_section"] = rope.sections;
        if (rope.interleaved) json["mrope_interleaved"] = true;
        json["rope_type"] = rope_type_name(rope.type);
    }
    if (rope.type == spec::RopeSpec::Type::standard) return json;
    json["rope_type"] = rope_type_name(rope.type);
    json["factor"] = rope.factor;
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
        if (rope.query_beta != 0) json["llama_4_scaling_beta"] = rope.query_beta;
        if (rope.mscale) json["mscale"] = *rope.mscale;
        if (rope.mscale_all_dim) json["mscale_all_dim"] = *rope.mscale_all_dim;
    } else if (rope.type == spec::RopeSpec::Type::longrope) {
        json["short_factor"] = rope.short_factor;
        json["long_factor"] = rope.long_factor;
        if (rope.attention_factor) json["attention_factor"] = *rope.attention_factor;
    }
    return json;
}

/// As transformers 5 says a rope.
Json rope_parameters(const spec::RopeSpec& rope) {
    Json parameters = rope_scaling(rope);
    if (parameters.is_null()) parameters = {{"rope_type", "default"}};
    parameters["rope_theta"] = rope.theta;
    if (rope.rotated_share != 1.0) parameters["partial_rotary_factor"] = rope.rotated_share;
    return parameters;
}

void write_rope(const spec::ModelSpec& spec, Json& config) {
    const Family& family = family_of(spec);
    const spec::RopeSpec& rope = spec.ropes.front();
    config.erase("original_max_position_embeddings");  // next to the object it would win
    if (family.longrope_by_old_names && rope.original_max_position_embeddings > 0)
        config["original_max_position_embeddings"] = rope.original_max_position_embeddings;
    if (!config.contains("rope_parameters") && !family.ropes_by_layer_type) {
        config["rope_theta"] = rope.theta;
        config["rope_scaling"] = rope_scaling(rope);
        if (family.partial_rotation) config["partial_rotary_factor"] = rope.rotated_share;
        return;
    }
    for (const char* const key : {"rope_theta", "rope_scaling", "rope_local_base_freq"}) config.erase(key);
    if (family.ropes_by_layer_type) {
        config["rope_parameters"] = {{"full_attention", rope_parameters(rope)},
                                     {"sliding_attention", rope_parameters(spec.ropes.back())}};
    } else {
        config["rope_parameters"] = rope_parameters(rope);
    }
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
    config[std::string(family.activation_key)] = activation_name(spec.gate_activation);
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
    if (config.quant_method == "mxfp4")
        return {{"quant_method", config.quant_method},
                {"modules_to_not_convert", config.llm_int8_skip_modules.value_or(std::vector<std::string>())}};
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
    Json whole = original.empty() ? fresh_config() : parse_json<Json>(original, source);
    const bool flat = !spec.part_of.empty() && find_whole(spec.part_of)->flat && !whole.contains("text_config");
    Json& config = spec.part_of.empty() || flat ? whole : whole["text_config"];
    // An original's own spelling of rope and layers says more than a ModelSpec: it stays unless the meaning changed.
    bool keep_rope = false, keep_keys = false;
    if (!original.empty()) {
        const spec::ModelSpec before = parse_model_spec(original, source);
        const auto same = [](const spec::RopeSpec& a, const spec::RopeSpec& b) {
            return rope_parameters(a) == rope_parameters(b);
        };
        keep_rope = std::ranges::equal(before.ropes, spec.ropes, same);
        keep_keys = before.layers == spec.layers && before.experts == spec.experts;
    }
    write_structure(spec, config);
    if (!keep_rope) write_rope(spec, config);
    if (const FamilyKeys* const keys = family_of(spec).keys; keys != nullptr && !keep_keys) keys->write(spec, config);
    write_tokens(spec, config);
    if (!spec.part_of.empty()) {  // what counts for all parts is the whole one's to say
        const Whole& of = *find_whole(spec.part_of);
        whole["architectures"] = {of.class_name};
        whole["model_type"] = of.model_type;
        whole["tie_word_embeddings"] = spec.tie_word_embeddings;
        write_tokens(spec, whole);
        if (!flat)
            for (const char* const key : {"dtype", "torch_dtype"}) config.erase(key);
    }
    const bool new_name = whole.contains("dtype");
    whole[new_name ? "dtype" : "torch_dtype"] = spec::name_of(spec.dtype);
    if (new_name) whole.erase("torch_dtype");
    whole.erase("quantization_config");
    whole.erase("serve_grid");  // of the original's values, not of these
    if (quantization) whole["quantization_config"] = quantization_json(*quantization);
    return whole.dump(2) + "\n";
}

}  // namespace unsloth::formats
