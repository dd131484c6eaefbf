// Granite: Llama with multipliers.
#include <cmath>

#include "formats/families/family.h"

namespace unsloth::formats {
namespace {

void read_multipliers(const JsonReader& config, spec::ModelSpec& spec) {
    spec.embedding_multiplier = config.number("embedding_multiplier").value_or(1.0);
    spec.residual_multiplier = config.number("residual_multiplier").value_or(1.0);
    spec.score_scale = config.number("attention_multiplier").value_or(1.0);
    spec.logits_divisor = config.number("logits_scaling").value_or(1.0);
}

void write_multipliers(const spec::ModelSpec& spec, Json& config) {
    config["embedding_multiplier"] = spec.embedding_multiplier;
    config["residual_multiplier"] = spec.residual_multiplier;
    config["attention_multiplier"] = spec.score_scale.value_or(1.0 / std::sqrt(static_cast<double>(spec.head_dim)));
    config["logits_scaling"] = spec.logits_divisor;
}

constexpr FamilyKeys granite_keys = {read_multipliers, write_multipliers};

}  // namespace

constinit const Family granite_family = {
    .model_type = "granite",
    .class_name = "GraniteForCausalLM",
    .gguf = {.name = "granite", .permutes_heads = true, .all_biases = true, .rope_divisors = true, .multipliers = true},
    .kv_heads_default = true,
    .head_dim_key = false,
    .attention_bias_key = true,
    .mlp_bias_key = true,
    .keys = &granite_keys};

}  // namespace unsloth::formats
