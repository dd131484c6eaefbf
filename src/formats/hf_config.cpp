#include "unsloth/formats/hf_config.h"

#include <algorithm>
#include <cmath>

#include "formats/families/family.h"
#include "formats/json.h"
#include "formats/rope_config.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/formats/folder_contents.h"

namespace unsloth::formats {
namespace {

/// Of a model with several parts: its text_config, with what the whole one's config.json says for all parts.
OrderedJson text_config_of(const JsonReader& config, const Whole& whole) {
    for (const std::string& name : config.strings("architectures"))
        if (name != whole.class_name)
            throw Error("model.unsupported", cat(config["architectures"].where(), ": '", name,
                                                 "' is not supported; expected ", whole.class_name));
    const bool flat = whole.flat && !config.has("text_config");
    if (!flat && !config.object("text_config")) config["text_config"].refuse("an object");
    OrderedJson text = flat ? config.value() : config["text_config"].value();
    for (const char* const key : {"architectures", "vision_config"}) text.erase(key);
    if (flat || !text.contains("model_type")) text["model_type"] = whole.text_type;
    text["tie_word_embeddings"] = config.boolean("tie_word_embeddings").value_or(whole.tied);
    for (const char* const key : {"bos_token_id", "eos_token_id", "pad_token_id"})
        if (config.has(key)) text[key] = config[key].value();
    for (const char* const key : {"dtype", "torch_dtype"})
        if (config.has(key) && !text.contains("dtype") && !text.contains("torch_dtype"))
            text[key] = config[key].value();
    return text;
}

/// Fills model_type, by which family_of() finds the family.
void read_family(const JsonReader& config, spec::ModelSpec& spec) {
    const auto type = config.string("model_type");
    if (!type) config["model_type"].refuse("the name of an architecture");
    const std::string hint = cat("This program trains ", family_names(), " models.");
    const Family* const family = find_family(*type);
    if (family == nullptr)
        throw Error("model.unsupported", cat(config["model_type"].where(), ": '", *type, "' is not supported"), hint);
    for (const std::string& name : config.strings("architectures"))
        if (name != family->class_name)
            throw Error(
                "model.unsupported",
                cat(config["architectures"].where(), ": '", name, "' is not supported; expected ", family->class_name),
                hint);
    spec.model_type = *type;
}

void read_sizes(const JsonReader& config, spec::ModelSpec& spec) {
    spec.hidden_size = config["hidden_size"].integer();
    spec.intermediate_size = config["intermediate_size"].integer();
    spec.num_layers = config["num_hidden_layers"].integer();
    spec.num_heads = config["num_attention_heads"].integer();
    spec.vocab_size = config["vocab_size"].integer();
    spec.max_position_embeddings = config["max_position_embeddings"].integer();
    const Family& family = family_of(spec);
    spec.num_kv_heads = family.kv_heads_default ? config.integer("num_key_value_heads").value_or(spec.num_heads)
                                                : config["num_key_value_heads"].integer();
    if (const auto head_dim = config.integer("head_dim")) {
        spec.head_dim = *head_dim;
    } else if (family.head_dim) {
        spec.head_dim = *family.head_dim;
    } else {
        if (spec.num_heads < 1 || spec.hidden_size % spec.num_heads != 0)
            throw Error("model.bad-config",
                        cat(config["hidden_size"].where(), " ", spec.hidden_size,
                            " is no multiple of num_attention_heads ", spec.num_heads, ", and head_dim is absent"));
        spec.head_dim = spec.hidden_size / spec.num_heads;
    }
    spec.rms_norm_eps = config.number("rms_norm_eps").value_or(1e-6);
}

void read_structure(const JsonReader& config, spec::ModelSpec& spec) {
    const Family& family = family_of(spec);
    const std::string_view expected = activation_name(family.gate_activation);
    const std::string activation = config.string(family.activation_key).value_or(std::string(expected));
    if (activation != expected)
        throw Error("model.unsupported", cat(config[family.activation_key].where(), ": '", activation,
                                             "' is not supported; expected ", expected));
    spec.gate_activation = family.gate_activation;
    spec.tie_word_embeddings = config.boolean("tie_word_embeddings").value_or(false);
    const bool attention_bias = config.boolean("attention_bias").value_or(false);
    const bool mlp_bias = config.boolean("mlp_bias").value_or(false);
    spec.o_bias = family.attention_bias_key && attention_bias;
    spec.qkv_bias = family.qkv_bias || spec.o_bias;
    spec.mlp_bias = family.mlp_bias_key && mlp_bias;
    spec.qk_norm = family.qk_norm;
    spec.qk_norm_of_all_heads = family.qk_norm_of_all_heads;
    spec.norms = family.norms;
    spec.norm_offset = family.norm_offset;
    if (family.fused)
        spec.linears = {spec::Projection::qkv, spec::Projection::o, spec::Projection::gate_up, spec::Projection::down};
}

void read_layers(const JsonReader& config, spec::ModelSpec& spec) {
    spec.layers.assign(static_cast<std::size_t>(spec.num_layers), {});
    if (config.integer("sliding_window").value_or(1) < 1) config["sliding_window"].refuse("a positive integer or null");
    if (const FamilyKeys* const keys = family_of(spec).keys) keys->read(config, spec);
}

spec::DType read_dtype(const JsonReader& config, spec::DType otherwise) {
    auto name = config.string("dtype");
    const char* const key = name ? "dtype" : "torch_dtype";
    if (!name) name = config.string("torch_dtype");
    if (!name) return otherwise;
    if (name->starts_with("torch.")) name->erase(0, 6);
    for (const spec::DType type : {spec::DType::f32, spec::DType::bf16, spec::DType::f16})
        if (*name == spec::name_of(type)) return type;
    config[key].refuse("float32, bfloat16 or float16");
}

std::optional<int64_t> token_id(const JsonReader& config, const std::string& key) {
    const auto ids = config.integers(key);
    if (ids.empty() || ids[0] < 0) return std::nullopt;  // early Llama files say -1 for none
    return ids[0];
}

void check_range(const std::string& source, const char* key, int64_t value, int64_t largest) {
    if (value >= 1 && value <= largest) return;
    throw Error("model.bad-config", cat(source, ": ", key, ": expected 1 to ", largest, ", found ", value));
}

void check_rope(const spec::RopeSpec& rope, const std::string& source) {
    const auto require = [&](bool holds, const char* key, const char* expected, double found) {
        if (!holds)
            throw Error("model.bad-config",
                        cat(source, ": rope parameter ", key, ": expected ", expected, ", found ", found));
    };
    require(std::isfinite(rope.theta) && rope.theta > 1.0, "rope_theta", "more than 1", rope.theta);
    require(std::isfinite(rope.factor) && rope.factor >= 1.0, "factor", "at least 1", rope.factor);
    require(rope.original_max_position_embeddings >= 0 && rope.original_max_position_embeddings <= int64_t{1} << 31,
            "original_max_position_embeddings", "1 to 2^31",
            static_cast<double>(rope.original_max_position_embeddings));
    if (rope.type == spec::RopeSpec::Type::llama3) {
        require(rope.low_freq_factor > 0.0, "low_freq_factor", "more than 0", rope.low_freq_factor);
        require(rope.high_freq_factor > rope.low_freq_factor, "high_freq_factor", "more than low_freq_factor",
                rope.high_freq_factor);
    }
    if (rope.type == spec::RopeSpec::Type::yarn) {
        require(rope.beta_slow > 0.0, "beta_slow", "more than 0", rope.beta_slow);
        require(rope.beta_fast >= rope.beta_slow, "beta_fast", "at least beta_slow", rope.beta_fast);
        require(rope.attention_factor.value_or(1.0) > 0.0, "attention_factor", "more than 0",
                rope.attention_factor.value_or(1.0));
    }
}

}  // namespace

void set_rope_scaling(spec::ModelSpec& spec, const std::string& json_text, const std::string& source) {
    const auto json = parse_json<OrderedJson>(json_text, source);
    const JsonReader rope(json, source);
    if (!rope.has("rope_type") && !rope.has("type"))
        throw Error("model.bad-config", cat(source, " names no rope_type"),
                    "As in {\"rope_type\": \"linear\", \"factor\": 2.0}.");
    spec::RopeSpec& scaled = spec.ropes.front();
    const spec::RopeSpec before = scaled;
    scaled = {.theta = before.theta,
              .rotated_share = before.rotated_share,
              .query_beta = before.query_beta,
              .sections = before.sections,
              .interleaved = before.interleaved};
    read_rope_options(rope, spec, scaled);
    if (scaled.type != spec::RopeSpec::Type::standard && scaled.type != spec::RopeSpec::Type::dynamic) {
        // The model reaches as far as it did, and scaled further in the same way by as much further.
        const bool further = scaled.type == before.type;
        const double reach = static_cast<double>(spec.max_position_embeddings) *
                             (further ? scaled.factor / before.factor : scaled.factor);
        if (further && scaled.original_max_position_embeddings == 0)
            scaled.original_max_position_embeddings = before.original_max_position_embeddings;
        const int64_t given = scaled.original_max_position_embeddings;
        if (given == 0) scaled.original_max_position_embeddings = spec.max_position_embeddings;
        const double stated = further || given == 0 ? reach : static_cast<double>(given) * scaled.factor;
        spec.max_position_embeddings = std::max(spec.max_position_embeddings, static_cast<int64_t>(stated));
    }
    check_model_spec(spec, source);
}

void check_model_spec(const spec::ModelSpec& spec, const std::string& source) {
    // The bounds keep every product of sizes far inside 64 bits; no published model comes near them.
    check_range(source, "hidden_size", spec.hidden_size, int64_t{1} << 20);
    check_range(source, "intermediate_size", spec.intermediate_size, int64_t{1} << 22);
    check_range(source, "num_hidden_layers", spec.num_layers, 4096);
    check_range(source, "num_attention_heads", spec.num_heads, 1 << 14);
    check_range(source, "num_key_value_heads", spec.num_kv_heads, spec.num_heads);
    check_range(source, "head_dim", spec.head_dim, 1 << 14);
    check_range(source, "vocab_size", spec.vocab_size, int64_t{1} << 26);
    check_range(source, "max_position_embeddings", spec.max_position_embeddings, int64_t{1} << 31);
    if (spec.num_heads % spec.num_kv_heads != 0)
        throw Error("model.bad-config", cat(source, ": num_attention_heads ", spec.num_heads,
                                            " is no multiple of num_key_value_heads ", spec.num_kv_heads));
    if (spec.head_dim % 2 != 0)
        throw Error("model.bad-config", cat(source, ": head_dim: expected an even number, found ", spec.head_dim));
    if (spec.has_rope(spec::RopeSpec::Type::dynamic) && spec.head_dim <= 2)
        throw Error("model.bad-config",
                    cat(source, ": head_dim: dynamic rope needs more than 2, found ", spec.head_dim));
    if (!(spec.rms_norm_eps > 0.0 && spec.rms_norm_eps < 1.0))
        throw Error("model.bad-config",
                    cat(source, ": rms_norm_eps: expected a number between 0 and 1, found ", spec.rms_norm_eps));
    if (static_cast<int64_t>(spec.layers.size()) != spec.num_layers)
        throw Error("model.bad-config",
                    cat(source, ": ", spec.layers.size(), " layers are described, of ", spec.num_layers));
    for (const spec::RopeSpec& rope : spec.ropes) {
        check_rope(rope, source);
        if (const int64_t turned = spec.rotary_dim(rope); turned < 2 || turned % 2 != 0)
            throw Error("model.bad-config",
                        cat(source, ": partial_rotary_factor ", rope.rotated_share, ": turns ", turned, " of ",
                            spec.head_dim, " values of a head, expected an even number"));
    }
    if (spec.experts) {
        check_range(source, "the number of experts", spec.experts->count, 256);
        check_range(source, "num_experts_per_tok", spec.experts->top_k, std::min<int64_t>(16, spec.experts->count));
        check_range(source, "moe_intermediate_size", spec.experts->intermediate_size, int64_t{1} << 22);
    }
    for (const auto& [key, value] : {std::pair{"embedding_multiplier", spec.embedding_multiplier},
                                     std::pair{"residual_multiplier", spec.residual_multiplier},
                                     std::pair{"the scale of attention's scores", spec.score_scale.value_or(1.0)},
                                     std::pair{"logits_scaling", spec.logits_divisor}})
        if (!std::isfinite(value) || value == 0.0)
            throw Error("model.bad-config", cat(source, ": ", key, ": expected a number but 0, found ", value));
}

spec::ModelSpec parse_model_spec(const std::string& json_text, const std::string& source, spec::DType otherwise) {
    auto json = parse_json<OrderedJson>(json_text, source);
    spec::ModelSpec spec;
    std::string path;
    const OrderedJson all = json;
    const JsonReader file(all, source);
    const Whole* const whole = find_whole(file.string("model_type").value_or(""));
    if (whole != nullptr) {
        spec.part_of = whole->model_type;
        spec.part_names = whole->names;
        path = file.has("text_config") ? "text_config" : "";
        json = text_config_of(file, *whole);
    }
    const JsonReader config(json, source, path);
    read_family(config, spec);
    if (const std::string_view text = family_of(spec).defaults; !text.empty()) {
        const OrderedJson defaults = OrderedJson::parse(text);
        for (const auto& [key, value] : defaults.items())
            if (!json.contains(key)) json[key] = value;
    }
    for (const char* const nested : {"text_config", "per_layer_config"})
        if (config.has(nested)) config[nested].refuse(cat("nothing (", *config.string("model_type"), " has one size)"));
    read_sizes(config, spec);
    check_range(source, "num_hidden_layers", spec.num_layers, 4096);  // before a vector of that length is made
    read_structure(config, spec);
    read_rope(config, spec);
    read_layers(config, spec);
    spec.dtype = read_dtype(config, otherwise);
    spec.bos_token_id = token_id(config, "bos_token_id");
    spec.pad_token_id = token_id(config, "pad_token_id");
    for (const int64_t id : config.integers("eos_token_id"))
        if (id >= 0) spec.eos_token_ids.push_back(id);
    check_model_spec(spec, source);
    if (whole != nullptr && whole->read_vision != nullptr) whole->read_vision(file, spec);
    return spec;
}

spec::ModelSpec read_model_spec(const std::filesystem::path& folder, spec::DType otherwise) {
    const auto path = folder / "config.json";
    std::error_code ignored;
    if (std::filesystem::is_directory(folder, ignored) && !std::filesystem::exists(path, ignored))
        throw missing_in(folder, "config.json", Sought::model, folder.string());
    spec::ModelSpec spec = parse_model_spec(read_file(path), path.string(), otherwise);
    if (spec.vision) read_image_values(folder, *spec.vision);
    return spec;
}

std::optional<QuantizationConfig> parse_quantization_config(const std::string& json_text, const std::string& source) {
    const auto json = parse_json<OrderedJson>(json_text, source);
    const auto reader = JsonReader(json, source).object("quantization_config");
    if (!reader) return std::nullopt;
    QuantizationConfig config;
    config.quant_method = reader->string("quant_method").value_or("bitsandbytes");
    if (config.quant_method == "mxfp4") {
        config.load_in_4bit = config.bnb_4bit_use_double_quant = false;
        if (auto skipped = reader->strings("modules_to_not_convert"); !skipped.empty())
            config.llm_int8_skip_modules = std::move(skipped);
        return config;
    }
    if (config.quant_method != "bitsandbytes")
        throw Error("model.unsupported",
                    cat(source, ": quantization_config.quant_method: '", config.quant_method, "' is not supported"),
                    "Use the 16-bit model, one quantised with bitsandbytes, or one with experts in MXFP4.");
    config.load_in_4bit = reader->boolean("load_in_4bit").value_or(false);
    config.load_in_8bit = reader->boolean("load_in_8bit").value_or(false);
    config.bnb_4bit_quant_type = reader->string("bnb_4bit_quant_type").value_or("fp4");  // bitsandbytes' default
    if (config.bnb_4bit_quant_type != "nf4" && config.bnb_4bit_quant_type != "fp4")
        (*reader)["bnb_4bit_quant_type"].refuse("nf4 or fp4");
    config.bnb_4bit_use_double_quant = reader->boolean("bnb_4bit_use_double_quant").value_or(false);
    config.bnb_4bit_compute_dtype = reader->string("bnb_4bit_compute_dtype").value_or("float32");
    config.bnb_4bit_quant_storage = reader->string("bnb_4bit_quant_storage").value_or("uint8");
    if (auto skipped = reader->strings("llm_int8_skip_modules"); !skipped.empty())
        config.llm_int8_skip_modules = std::move(skipped);
    return config;
}

void check_quantization_config(const std::optional<QuantizationConfig>& config, const spec::ModelSpec& model,
                               const std::string& source) {
    if (!config || config->quant_method != "mxfp4" || model.experts) return;
    throw Error("model.unsupported",
                cat(source, ": quantization_config.quant_method: mxfp4 is for experts' weights, and ", model.model_type,
                    " has no experts"),
                "Use the 16-bit model.");
}

std::optional<QuantizationConfig> read_quantization_config(const std::filesystem::path& folder) {
    const auto path = folder / "config.json";
    return parse_quantization_config(read_file(path), path.string());
}

}  // namespace unsloth::formats
