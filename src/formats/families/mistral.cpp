// Mistral's class has no biases, whatever the file says, and one window for all layers.
#include <algorithm>

#include "formats/families/family.h"
#include "unsloth/core/error.h"

namespace unsloth::formats {
namespace {

/// MistralConfig's default is 4096; null means none.
void read_mistral_window(const JsonReader& config, spec::ModelSpec& spec) {
    const int64_t window =
        config.value().contains("sliding_window") ? config.integer("sliding_window").value_or(0) : 4096;
    std::ranges::fill(spec.sliding_window, window);
}

void write_mistral_window(const spec::ModelSpec& spec, Json& config) {
    const int64_t window = spec.sliding_window.front();
    for (const int64_t other : spec.sliding_window)
        UNSLOTH_CHECK(other == window, "Mistral has a window in all layers or in none, and one for all");
    config["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
}

constexpr WindowKeys mistral_windows = {read_mistral_window, write_mistral_window};

}  // namespace

constinit const Family mistral_family = {
    .model_type = "mistral", .class_name = "MistralForCausalLM", .gguf = gguf_llama, .windows = &mistral_windows};

}  // namespace unsloth::formats
