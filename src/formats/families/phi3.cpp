// Phi-3, 3.5, 4 and 4-mini: q, k and v are one matrix, gate and up another; one window for all layers, or none.
#include "formats/families/family.h"

namespace unsloth::formats {
namespace {

void read_phi3_window(const JsonReader& config, spec::ModelSpec& spec) {
    const int64_t window = config.integer("sliding_window").value_or(0);
    for (spec::LayerSpec& layer : spec.layers) layer.window = window;
}

void write_phi3_window(const spec::ModelSpec& spec, Json& config) {
    const int64_t window = common_window(spec);
    config["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
}

constexpr FamilyKeys phi3_keys = {read_phi3_window, write_phi3_window};

}  // namespace

constinit const Family phi3_family = {
    .model_type = "phi3",
    .class_name = "Phi3ForCausalLM",
    .gguf = {.name = "phi3", .longrope = true, .windows = GgufArchitecture::Windows::common},
    .kv_heads_default = true,
    .head_dim_key = false,
    .fused = true,
    .partial_rotation = true,
    .longrope_by_old_names = true,
    .keys = &phi3_keys,
    .defaults = R"({"rms_norm_eps": 1e-05,
                                          "original_max_position_embeddings": 4096})"};

}  // namespace unsloth::formats
