// Gemma 3's text model: norms before and after attention and MLP that multiply by 1 + w, embeddings times the root of
// their size, scores scaled by a number of their own, and five layers with a window and a rope of their own to one
// without.
#include <cmath>

#include "formats/families/family.h"
#include "unsloth/core/error.h"

namespace unsloth::formats {
namespace {

void read_gemma3(const JsonReader& config, spec::ModelSpec& spec) {
    for (const char* const key : {"final_logit_softcapping", "attn_logit_softcapping", "use_bidirectional_attention"})
        refuse_key(config, key);
    spec.embedding_multiplier = std::sqrt(static_cast<double>(spec.hidden_size));
    spec.embedding_multiplier_is_inside = true;
    const double scalar = config["query_pre_attn_scalar"].number();
    if (!(scalar > 0)) config["query_pre_attn_scalar"].refuse("a number above 0");
    spec.score_scale = 1.0 / std::sqrt(scalar);
    const int64_t window = config["sliding_window"].integer();
    int64_t pattern = 6;
    for (const char* const key : {"_sliding_window_pattern", "sliding_window_pattern"})
        if (const auto given = config.integer(key)) {
            if (*given < 1) config[key].refuse("a positive integer");
            pattern = *given;
        }
    const std::vector<bool> windowed =
        windowed_layers(config, spec, [&](int64_t layer) { return (layer + 1) % pattern != 0; });
    for (std::size_t layer = 0; layer < windowed.size(); ++layer)
        if (windowed[layer]) spec.layers[layer] = {.window = window, .rope = 1};
}

void write_gemma3(const spec::ModelSpec& spec, Json& config) {
    const double scale = spec.score_scale.value();
    config["query_pre_attn_scalar"] = std::round(1e6 / (scale * scale)) / 1e6;
    if (const int64_t window = common_window(spec); window > 0) config["sliding_window"] = window;
    config["layer_types"] = layer_types(spec);
    config.erase("sliding_window_pattern");
    config.erase("_sliding_window_pattern");
}

constexpr FamilyKeys gemma3_keys = {read_gemma3, write_gemma3};

}  // namespace

constinit const Family gemma3_family = {
    .model_type = "gemma3_text",
    .class_name = "Gemma3ForCausalLM",
    .gguf = {.name = "gemma3", .windows = GgufArchitecture::Windows::five_of_six},
    .attention_bias_key = true,
    .qk_norm = true,
    .norms = spec::NormPlacement::both,
    .norm_offset = 1,
    .gate_activation = spec::GateActivation::gelu_tanh,
    .activation_key = "hidden_activation",
    .ropes_by_layer_type = true,
    .keys = &gemma3_keys,
    .defaults = R"({"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-06, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "tie_word_embeddings": true,
        "query_pre_attn_scalar": 256, "sliding_window": 4096, "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0})"};

}  // namespace unsloth::formats
