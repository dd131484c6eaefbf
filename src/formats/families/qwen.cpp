// Qwen's classes: a window for the layers that layer_types names, or for those from max_window_layers on.
#include <algorithm>

#include "formats/families/family.h"
#include "unsloth/core/error.h"

namespace unsloth::formats {
namespace {

void read_qwen_windows(const JsonReader& config, spec::ModelSpec& spec) {
    const bool in_use = config.boolean("use_sliding_window").value_or(false);
    const int64_t window =
        config.integer("sliding_window").value_or(in_use && !config.value().contains("sliding_window") ? 4096 : 0);
    const int64_t first = config.integer("max_window_layers").value_or(28);
    const std::vector<bool> windowed =
        windowed_layers(config, spec, [&](int64_t layer) { return in_use && window != 0 && layer >= first; });
    for (std::size_t layer = 0; layer < windowed.size(); ++layer) {
        if (windowed[layer] && (!in_use || window == 0))
            throw Error("model.bad-config", cat(config["layer_types"].where(), " gives layer ", layer,
                                                " a sliding window, but use_sliding_window and sliding_window do not"));
        spec.layers[layer].window = windowed[layer] ? window : 0;
    }
}

void write_qwen_windows(const spec::ModelSpec& spec, Json& config) {
    const auto& layers = spec.layers;
    const auto first = std::ranges::find_if(layers, [](const spec::LayerSpec& layer) { return layer.window > 0; });
    const int64_t window = common_window(spec);
    config["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
    config["use_sliding_window"] = window > 0;
    config["max_window_layers"] = first - layers.begin();
    config["layer_types"] = layer_types(spec);
}

constexpr FamilyKeys qwen_keys = {read_qwen_windows, write_qwen_windows};

}  // namespace

constinit const Family qwen2_family = {
    .model_type = "qwen2",
    .class_name = "Qwen2ForCausalLM",
    .gguf = {.name = "qwen2", .any_head_size = false, .large = GgufArchitecture::Large::all},
    .head_dim_key = false,  // but every version of the class reads the key if it is there
    .qkv_bias = true,
    .keys = &qwen_keys};

constinit const Family qwen3_family = {.model_type = "qwen3",
                                       .class_name = "Qwen3ForCausalLM",
                                       .gguf = {.name = "qwen3"},
                                       .head_dim = 128,  // Qwen3Config's default
                                       .attention_bias_key = true,
                                       .qk_norm = true,
                                       .keys = &qwen_keys};

// The text parts of models that see images.

constinit const Family qwen2_5_vl_family = {.model_type = "qwen2_5_vl_text",
                                            .class_name = "Qwen2_5_VLForConditionalGeneration",
                                            .gguf = {.name = "qwen2vl", .any_head_size = false},
                                            .head_dim_key = false,
                                            .qkv_bias = true,
                                            .axes = Family::Axes::sections,
                                            .keys = &qwen_keys};

constinit const Family qwen3_vl_family = {.model_type = "qwen3_vl_text",
                                          .class_name = "Qwen3VLForConditionalGeneration",
                                          .gguf = {.name = "qwen3vl"},
                                          .head_dim = 128,
                                          .attention_bias_key = true,
                                          .qk_norm = true,
                                          .axes = Family::Axes::interleaved};

}  // namespace unsloth::formats
