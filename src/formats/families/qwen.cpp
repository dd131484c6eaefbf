// Qwen's classes: a window for the layers that layer_types names, or for those from max_window_layers on.
#include <algorithm>

#include "formats/families/family.h"
#include "unsloth/core/error.h"

namespace unsloth::formats {
namespace {

void read_qwen_windows(const JsonReader& config, spec::ModelSpec& spec) {
    const auto layer_types = config.strings("layer_types");
    if (config.has("layer_types") && static_cast<int64_t>(layer_types.size()) != spec.num_layers)
        throw Error("model.bad-config", cat(config["layer_types"].where(), " has ", layer_types.size(), " entries for ",
                                            spec.num_layers, " layers"));
    const bool in_use = config.boolean("use_sliding_window").value_or(false);
    const int64_t window =
        config.integer("sliding_window").value_or(in_use && !config.value().contains("sliding_window") ? 4096 : 0);
    const int64_t first = config.integer("max_window_layers").value_or(28);
    for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
        bool windowed = in_use && window != 0 && layer >= first;
        if (!layer_types.empty()) {
            const std::string& type = layer_types[static_cast<std::size_t>(layer)];
            if (type != "full_attention" && type != "sliding_attention")
                throw Error("model.unsupported", cat(config["layer_types"].where(), ": '", type, "' is not supported"));
            windowed = type == "sliding_attention";
            if (windowed && (!in_use || window == 0))
                throw Error("model.bad-config",
                            cat(config["layer_types"].where(), " gives layer ", layer,
                                " a sliding window, but use_sliding_window and sliding_window do not"));
        }
        spec.layers[static_cast<std::size_t>(layer)].window = windowed ? window : 0;
    }
}

void write_qwen_windows(const spec::ModelSpec& spec, Json& config) {
    const auto& layers = spec.layers;
    const auto first = std::ranges::find_if(layers, [](const spec::LayerSpec& layer) { return layer.window > 0; });
    const bool any = first != layers.end();
    for (const spec::LayerSpec& layer : layers)
        UNSLOTH_CHECK(layer.window == 0 || layer.window == first->window,
                      "config.json has one sliding_window for all layers");
    config["sliding_window"] = any ? Json(first->window) : Json(nullptr);
    config["use_sliding_window"] = any;
    config["max_window_layers"] = first - layers.begin();
    Json types = Json::array();
    for (const spec::LayerSpec& layer : layers)
        types.push_back(layer.window > 0 ? "sliding_attention" : "full_attention");
    config["layer_types"] = std::move(types);
}

constexpr LayerKeys qwen_layers = {read_qwen_windows, write_qwen_windows};

}  // namespace

constinit const Family qwen2_family = {
    .model_type = "qwen2",
    .class_name = "Qwen2ForCausalLM",
    .gguf = {.name = "qwen2", .any_head_size = false, .large = GgufArchitecture::Large::all},
    .head_dim_key = false,  // but every version of the class reads the key where it stands
    .qkv_bias = true,
    .layers = &qwen_layers};

constinit const Family qwen3_family = {.model_type = "qwen3",
                                       .class_name = "Qwen3ForCausalLM",
                                       .gguf = {.name = "qwen3"},
                                       .head_dim = 128,  // Qwen3Config's default
                                       .attention_bias_key = true,
                                       .qk_norm = true,
                                       .layers = &qwen_layers};

}  // namespace unsloth::formats
