// Mistral's class has no biases, whatever the file says, and one window for all layers.
#include "formats/families/family.h"
#include "unsloth/core/error.h"

namespace unsloth::formats {
namespace {

/// MistralConfig's default is 4096; null means none.
void read_mistral_window(const JsonReader& config, spec::ModelSpec& spec) {
    const int64_t window =
        config.value().contains("sliding_window") ? config.integer("sliding_window").value_or(0) : 4096;
    for (spec::LayerSpec& layer : spec.layers) layer.window = window;
}

void write_mistral_window(const spec::ModelSpec& spec, Json& config) {
    const int64_t window = spec.layers.front().window;
    for (const spec::LayerSpec& layer : spec.layers)
        UNSLOTH_CHECK(layer.window == window, "Mistral has a window in all layers or in none, and one for all");
    config["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
}

constexpr LayerKeys mistral_layers = {read_mistral_window, write_mistral_window};

}  // namespace

constinit const Family mistral_family = {
    .model_type = "mistral", .class_name = "MistralForCausalLM", .gguf = gguf_llama, .layers = &mistral_layers};

}  // namespace unsloth::formats
