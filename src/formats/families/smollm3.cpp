// SmolLM3: Llama, with layers that do not encode positions. These alone may have a window.
#include "formats/families/family.h"
#include "unsloth/core/error.h"

namespace unsloth::formats {
namespace {

void read_smollm3_layers(const JsonReader& config, spec::ModelSpec& spec) {
    const auto listed = config.integers("no_rope_layers");  // 1: the layer has rope
    if (!listed.empty() && static_cast<int64_t>(listed.size()) != spec.num_layers)
        throw Error("model.bad-config", cat(config["no_rope_layers"].where(), " has ", listed.size(), " entries for ",
                                            spec.num_layers, " layers"));
    const int64_t interval = config.integer("no_rope_layer_interval").value_or(4);
    if (interval < 1) config["no_rope_layer_interval"].refuse("a positive integer");
    for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
        const bool rotates =
            listed.empty() ? (layer + 1) % interval != 0 : listed[static_cast<std::size_t>(layer)] != 0;
        if (!rotates) spec.layers[static_cast<std::size_t>(layer)].rope = spec::LayerSpec::no_rope;
    }
    if (!config.boolean("use_sliding_window").value_or(false)) return;
    const int64_t window = config.integer("sliding_window").value_or(0);
    const std::vector<bool> windowed = windowed_layers(config, spec, [&](int64_t layer) {
        return spec.layers[static_cast<std::size_t>(layer)].rope == spec::LayerSpec::no_rope;
    });
    for (std::size_t layer = 0; layer < windowed.size(); ++layer)
        if (windowed[layer]) spec.layers[layer].window = window;
}

void write_smollm3_layers(const spec::ModelSpec& spec, Json& config) {
    Json rotates = Json::array();
    for (const spec::LayerSpec& layer : spec.layers) rotates.push_back(layer.rope == spec::LayerSpec::no_rope ? 0 : 1);
    config["no_rope_layers"] = std::move(rotates);
    const int64_t window = common_window(spec);
    config["use_sliding_window"] = window > 0;
    config["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
    config["layer_types"] = layer_types(spec);
}

constexpr FamilyKeys smollm3_keys = {read_smollm3_layers, write_smollm3_layers};

}  // namespace

constinit const Family smollm3_family = {.model_type = "smollm3",
                                         .class_name = "SmolLM3ForCausalLM",
                                         .gguf = {.name = "smollm3", .permutes_heads = true, .no_rope_interval = 4},
                                         .head_dim_key = false,
                                         .attention_bias_key = true,
                                         .mlp_bias_key = true,
                                         .keys = &smollm3_keys,
                                         .defaults = R"({"rope_theta": 2000000.0, "tie_word_embeddings": true,
                                             "num_key_value_heads": 4})"};

}  // namespace unsloth::formats
