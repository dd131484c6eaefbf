// gpt-oss: attention with sinks and biases, a window in every other layer, YaRN; MLPs of experts with biases and a
// clamped activation, whose matrices checkpoints have transposed and as one tensor for all experts.
#include <algorithm>
#include <cmath>

#include "formats/families/family.h"
#include "unsloth/core/error.h"

namespace unsloth::formats {
namespace {

/// GptOssConfig's, where config.json says nothing of a rope.
spec::RopeSpec usual_rope() {
    return {.type = spec::RopeSpec::Type::yarn,
            .theta = 150000.0,
            .factor = 32.0,
            .original_max_position_embeddings = 4096,
            .truncate = false};
}

void read_gpt_oss(const JsonReader& config, spec::ModelSpec& spec) {
    if (!config.has("rope_scaling") && !config.has("rope_parameters")) {
        const double theta = config.number("rope_theta").value_or(usual_rope().theta);
        spec.ropes.front() = usual_rope();
        spec.ropes.front().theta = theta;
    }
    if (const double alpha = config.number("swiglu_alpha").value_or(1.702); std::abs(alpha - 1.702) > 1e-9)
        throw Error("model.unsupported",
                    cat(config["swiglu_alpha"].where(), ": ", alpha, " is not supported; expected 1.702"));
    spec.gate_limit = config["swiglu_limit"].number();
    if (!(spec.gate_limit > 0)) config["swiglu_limit"].refuse("a number above 0");
    spec.attention_sinks = true;
    spec.mlp_bias = true;
    spec.experts = spec::ExpertsSpec{.count = config["num_local_experts"].integer(),
                                     .top_k = config["num_experts_per_tok"].integer(),
                                     .intermediate_size = spec.intermediate_size,
                                     .weights = spec::RouterWeights::of_chosen,
                                     .router_aux = router_aux(config, 0.9),
                                     .router = "router",
                                     .router_bias = true,
                                     .transposed = true};
    std::erase_if(spec.linears, [](spec::Projection p) { return spec::is_of_mlp(p); });
    const int64_t window = config["sliding_window"].integer();
    const std::vector<bool> windowed = windowed_layers(config, spec, [](int64_t layer) { return layer % 2 == 0; });
    for (std::size_t layer = 0; layer < windowed.size(); ++layer)
        spec.layers[layer] = {.window = windowed[layer] ? window : 0, .experts = true};
}

void write_gpt_oss(const spec::ModelSpec& spec, Json& config) {
    if (const int64_t window = common_window(spec); window > 0) config["sliding_window"] = window;
    config["layer_types"] = layer_types(spec);
    config["num_local_experts"] = spec.experts->count;
    config["num_experts_per_tok"] = spec.experts->top_k;
    if (config.contains("experts_per_token")) config["experts_per_token"] = spec.experts->top_k;
    config["swiglu_limit"] = spec.gate_limit;
    write_router_aux(spec, config);
}

constexpr FamilyKeys gpt_oss_keys = {read_gpt_oss, write_gpt_oss};

}  // namespace

constinit const Family gpt_oss_family = {
    .model_type = "gpt_oss",
    .class_name = "GptOssForCausalLM",
    .gguf = {.name = "gpt-oss", .all_biases = true, .windows = GgufArchitecture::Windows::by_layer},
    .head_dim = 64,
    .attention_bias_key = true,
    .gate_activation = spec::GateActivation::clamped_silu,
    .keys = &gpt_oss_keys,
    .defaults = R"({"num_hidden_layers": 36, "num_local_experts": 128, "vocab_size": 201088, "hidden_size": 2880,
        "intermediate_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8, "sliding_window": 128,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "num_experts_per_tok": 4, "attention_bias": true,
        "swiglu_limit": 7.0})"};

}  // namespace unsloth::formats
