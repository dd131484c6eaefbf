// Mistral's classes have no biases, whatever the file says, and one window for all layers. Ministral 3 scales queries
// by their position.
#include "formats/families/family.h"
#include "unsloth/core/error.h"

namespace unsloth::formats {
namespace {

void set_window(spec::ModelSpec& spec, int64_t window) {
    for (spec::LayerSpec& layer : spec.layers) layer.window = window;
}

/// MistralConfig's default is 4096; null means none.
void read_mistral_window(const JsonReader& config, spec::ModelSpec& spec) {
    set_window(spec, config.value().contains("sliding_window") ? config.integer("sliding_window").value_or(0) : 4096);
}

void read_ministral3_window(const JsonReader& config, spec::ModelSpec& spec) {
    set_window(spec, config.integer("sliding_window").value_or(0));
}

void write_mistral_window(const spec::ModelSpec& spec, Json& config) {
    const int64_t window = spec.layers.front().window;
    for (const spec::LayerSpec& layer : spec.layers)
        UNSLOTH_CHECK(layer.window == window, "Mistral has a window in all layers or in none, and one for all");
    config["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
}

constexpr FamilyKeys mistral_keys = {read_mistral_window, write_mistral_window},
                     ministral3_keys = {read_ministral3_window, write_mistral_window};

}  // namespace

constinit const Family mistral_family = {
    .model_type = "mistral", .class_name = "MistralForCausalLM", .gguf = gguf_llama, .keys = &mistral_keys};

constinit const Family ministral3_family = {.model_type = "ministral3",
                                            .class_name = "Ministral3ForCausalLM",
                                            .gguf = {.name = "mistral3", .permutes_heads = true, .query_beta = true},
                                            .head_dim = 128,
                                            .query_beta = true,
                                            .keys = &ministral3_keys,
                                            .defaults = R"({"rms_norm_eps": 1e-05})"};

}  // namespace unsloth::formats
