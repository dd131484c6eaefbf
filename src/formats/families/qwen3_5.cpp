// Qwen 3.5: three of four layers have a gated delta net in the place of attention, and the others' attention is gated.
#include "formats/families/family.h"
#include "unsloth/core/error.h"

namespace unsloth::formats {
namespace {

constexpr std::string_view delta_type = "linear_attention", full_type = "full_attention";

/// Of each layer whether it has a delta net: by layer_types, or all but each full_attention_interval-th.
std::vector<bool> delta_layers(const JsonReader& config, int64_t layers) {
    std::vector<bool> delta;
    const auto types = config.strings("layer_types");
    const int64_t interval = config.integer("full_attention_interval").value_or(4);
    if (types.empty() && interval < 1) config["full_attention_interval"].refuse("at least 1");
    if (!types.empty() && static_cast<int64_t>(types.size()) != layers)
        throw Error("model.bad-config",
                    cat(config["layer_types"].where(), " has ", types.size(), " entries for ", layers, " layers"));
    for (int64_t layer = 0; layer < layers; ++layer) {
        if (types.empty()) {
            delta.push_back((layer + 1) % interval != 0);
            continue;
        }
        const std::string& type = types[static_cast<std::size_t>(layer)];
        if (type != delta_type && type != full_type)
            throw Error("model.unsupported", cat(config["layer_types"].where(), ": '", type, "' is not supported"));
        delta.push_back(type == delta_type);
    }
    return delta;
}

int64_t size_of(const JsonReader& config, const char* key, int64_t usual, int64_t most) {
    const int64_t size = config.integer(key).value_or(usual);
    if (size < 1 || size > most) config[key].refuse(cat("1 to ", most));
    return size;
}

void read_delta_nets(const JsonReader& config, spec::ModelSpec& spec) {
    if (!config.boolean("attn_output_gate").value_or(true)) config["attn_output_gate"].refuse("true");
    spec.attention_output_gate = true;
    spec::DeltaSpec delta;
    delta.taps = size_of(config, "linear_conv_kernel_dim", 4, 16);
    delta.key_dim = size_of(config, "linear_key_head_dim", 128, 1024);
    delta.value_dim = size_of(config, "linear_value_head_dim", 128, 1024);
    delta.key_heads = size_of(config, "linear_num_key_heads", 16, 1 << 14);
    delta.value_heads = size_of(config, "linear_num_value_heads", 32, 1 << 14);
    if (delta.value_heads % delta.key_heads != 0)
        config["linear_num_value_heads"].refuse(cat("a multiple of linear_num_key_heads ", delta.key_heads));
    const std::vector<bool> has_delta = delta_layers(config, spec.num_layers);
    bool any = false;
    for (std::size_t layer = 0; layer < has_delta.size(); ++layer) {
        spec.layers[layer].delta = has_delta[layer];
        any = any || has_delta[layer];
    }
    if (!any) return;
    spec.delta = delta;
    using enum spec::Projection;
    spec.linears.insert(spec.linears.begin(), {delta_qkv, delta_z, delta_b, delta_a, delta_out});
}

void write_delta_nets(const spec::ModelSpec& spec, Json& config) {
    Json types = Json::array();
    for (const spec::LayerSpec& layer : spec.layers) types.push_back(layer.delta ? delta_type : full_type);
    config["layer_types"] = std::move(types);
    const spec::DeltaSpec delta = spec.delta.value_or(spec::DeltaSpec{});
    if (!spec.delta) return;
    config["linear_conv_kernel_dim"] = delta.taps;
    config["linear_key_head_dim"] = delta.key_dim;
    config["linear_value_head_dim"] = delta.value_dim;
    config["linear_num_key_heads"] = delta.key_heads;
    config["linear_num_value_heads"] = delta.value_heads;
}

constexpr FamilyKeys delta_keys = {read_delta_nets, write_delta_nets};

}  // namespace

constinit const Family qwen3_5_family = {.model_type = "qwen3_5_text",
                                         .class_name = "Qwen3_5ForCausalLM",
                                         .gguf = {.name = "qwen35"},
                                         .head_dim = 256,
                                         .attention_bias_key = true,
                                         .qk_norm = true,
                                         .norm_offset = 1.0,
                                         .partial_rotation = true,
                                         .axes = Family::Axes::interleaved,
                                         .axes_required = false,
                                         .keys = &delta_keys,
                                         .defaults = R"({"partial_rotary_factor": 0.25})"};

}  // namespace unsloth::formats
