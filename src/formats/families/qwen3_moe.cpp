// Qwen3-MoE: Qwen 3 whose MLPs are of experts, in all layers or but in some; one window for all layers, or none.
#include <algorithm>

#include "formats/families/family.h"
#include "unsloth/core/error.h"

namespace unsloth::formats {
namespace {

/// transformers 5 writes num_local_experts.
const char* experts_key(const JsonReader& config) {
    return config.has("num_experts") ? "num_experts" : "num_local_experts";
}

/// A layer has experts where mlp_only_layers does not name it, and at each decoder_sparse_step.
bool is_sparse(const std::vector<int64_t>& dense, int64_t step, int64_t layer) {
    return std::ranges::find(dense, layer) == dense.end() && (layer + 1) % step == 0;
}

void read_qwen3_moe(const JsonReader& config, spec::ModelSpec& spec) {
    const bool windowed = config.boolean("use_sliding_window").value_or(false);
    const int64_t window = windowed ? config.integer("sliding_window").value_or(4096) : 0;
    const int64_t step = config.integer("decoder_sparse_step").value_or(1);
    if (step < 1) config["decoder_sparse_step"].refuse("at least 1");
    const std::vector<int64_t> dense = config.integers("mlp_only_layers");
    const spec::ExpertsSpec experts{.count = config[experts_key(config)].integer(),
                                    .top_k = config.integer("num_experts_per_tok").value_or(8),
                                    .intermediate_size = config["moe_intermediate_size"].integer(),
                                    .weights = config.boolean("norm_topk_prob").value_or(false)
                                                   ? spec::RouterWeights::of_chosen
                                                   : spec::RouterWeights::of_all,
                                    .router_aux = router_aux(config, 0.001)};
    for (int64_t i = 0; i < spec.num_layers; ++i) {
        spec::LayerSpec& layer = spec.layers[static_cast<std::size_t>(i)];
        layer.window = window;
        layer.experts = experts.count > 0 && is_sparse(dense, step, i);
    }
    if (std::ranges::any_of(spec.layers, &spec::LayerSpec::experts)) spec.experts = experts;
    if (std::ranges::all_of(spec.layers, &spec::LayerSpec::experts))
        std::erase_if(spec.linears, [](spec::Projection p) { return spec::is_of_mlp(p); });
}

void write_qwen3_moe(const spec::ModelSpec& spec, Json& config) {
    const int64_t window = common_window(spec);
    config["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
    config["use_sliding_window"] = window > 0;
    config.erase("num_local_experts");
    const spec::ExpertsSpec experts = spec.experts.value_or(spec::ExpertsSpec());
    config["num_experts"] = experts.count;
    config["num_experts_per_tok"] = experts.top_k;
    config["moe_intermediate_size"] = experts.intermediate_size;
    config["norm_topk_prob"] = experts.weights == spec::RouterWeights::of_chosen;
    config["decoder_sparse_step"] = 1;
    write_router_aux(spec, config);
    Json dense = Json::array();
    for (std::size_t layer = 0; layer < spec.layers.size(); ++layer)
        if (!spec.layers[layer].experts) dense.push_back(layer);
    config["mlp_only_layers"] = dense;
}

constexpr FamilyKeys qwen3_moe_keys = {read_qwen3_moe, write_qwen3_moe};

}  // namespace

constinit const Family qwen3_moe_family = {.model_type = "qwen3_moe",
                                           .class_name = "Qwen3MoeForCausalLM",
                                           .gguf = {.name = "qwen3moe", .experts = true},
                                           .attention_bias_key = true,
                                           .qk_norm = true,
                                           .keys = &qwen3_moe_keys};

}  // namespace unsloth::formats
