// OLMo 3: norms on what attention and MLP add alone, q and k normed over all heads together, three layers with a window
// to one without. Scaled rope is of the latter.
#include "formats/families/family.h"

namespace unsloth::formats {
namespace {

void read_olmo3_layers(const JsonReader& config, spec::ModelSpec& spec) {
    const int64_t window = config["sliding_window"].integer();
    const std::vector<bool> windowed =
        windowed_layers(config, spec, [](int64_t layer) { return (layer + 1) % 4 != 0; });
    for (std::size_t layer = 0; layer < windowed.size(); ++layer)
        if (windowed[layer]) spec.layers[layer] = {.window = window, .rope = 1};
}

void write_olmo3_layers(const spec::ModelSpec& spec, Json& config) {
    if (const int64_t window = common_window(spec); window > 0) config["sliding_window"] = window;
    config["layer_types"] = layer_types(spec);
}

constexpr FamilyKeys olmo3_keys = {read_olmo3_layers, write_olmo3_layers};

}  // namespace

constinit const Family olmo3_family = {.model_type = "olmo3",
                                       .class_name = "Olmo3ForCausalLM",
                                       .gguf = {.name = "olmo2", .windows = GgufArchitecture::Windows::by_layer},
                                       .kv_heads_default = true,
                                       .head_dim_key = false,
                                       .attention_bias_key = true,
                                       .qk_norm = true,
                                       .qk_norm_of_all_heads = true,
                                       .norms = spec::NormPlacement::after,
                                       .ropes_by_layer_type = true,
                                       .keys = &olmo3_keys,
                                       .defaults = R"({"rms_norm_eps": 1e-05, "rope_theta": 500000.0,
                                           "sliding_window": 4096})"};

}  // namespace unsloth::formats
