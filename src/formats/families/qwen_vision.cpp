// The towers of Qwen's models that see images: vision_config, and how pixels are normalised.
#include <algorithm>
#include <cmath>

#include "formats/families/family.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"

namespace unsloth::formats {
namespace {

constexpr int64_t qwen_image_token = 151655;

void require(const JsonReader& config, const char* key, int64_t only) {
    if (config.integer(key).value_or(only) != only) config[key].refuse(std::to_string(only));
}

/// What both have; `activation`: the only one of its MLPs.
spec::VisionSpec read_common(const JsonReader& config, const JsonReader& tower, const spec::ModelSpec& text,
                             spec::VisionSpec usual, const char* activation) {
    spec::VisionSpec vision = std::move(usual);
    if (const auto given = tower.string("hidden_act"); given && *given != activation)
        throw Error("model.unsupported",
                    cat(tower["hidden_act"].where(), ": '", *given, "' is not supported; expected ", activation));
    for (const char* const key : {"in_channels", "in_chans"}) require(tower, key, spec::VisionSpec::channels);
    require(tower, "temporal_patch_size", spec::VisionSpec::frames);
    vision.hidden_size = tower_size(tower, "hidden_size", vision.hidden_size);
    vision.intermediate_size = tower_size(tower, "intermediate_size", vision.intermediate_size);
    vision.depth = tower_size(tower, "depth", vision.depth, most_tower_layers);
    vision.num_heads = tower_size(tower, "num_heads", vision.num_heads);
    vision.patch_size = tower_size(tower, "patch_size", vision.patch_size, 256);
    vision.merge = tower_size(tower, "spatial_merge_size", vision.merge, 16);
    vision.out_size = tower_size(tower, "out_hidden_size", text.hidden_size);
    if (vision.out_size != text.hidden_size)
        tower["out_hidden_size"].refuse(cat("the text part's hidden_size, ", text.hidden_size));
    if (vision.hidden_size % vision.num_heads != 0 || vision.head_dim() % 4 != 0)
        tower["hidden_size"].refuse("num_heads times a multiple of 4");
    if (const auto rope = tower.object("rope_parameters")) {
        if (const auto type = rope->string("rope_type"); type && *type != "axial" && *type != "default")
            (*rope)["rope_type"].refuse("\"axial\"");
        vision.rope_theta = rope->number("rope_theta").value_or(vision.rope_theta);
        if (!(vision.rope_theta > 1)) (*rope)["rope_theta"].refuse("more than 1");
    }
    const int64_t token = config.integer("image_token_id").value_or(qwen_image_token);
    if (token < 0 || token >= text.vocab_size) config["image_token_id"].refuse("an id of the vocabulary");
    vision.image_token = static_cast<int32_t>(token);
    return vision;
}

std::array<double, 3> channel_values(const JsonReader& values, const char* key, bool positive) {
    const JsonReader list = values[key];
    if (list.size() != 3) list.refuse("three numbers");
    std::array<double, 3> read{};
    for (std::size_t c = 0; c < 3; ++c) {
        read[c] = list.at(c).number();
        if (positive && !(read[c] > 0)) list.at(c).refuse("more than 0");
    }
    return read;
}

}  // namespace

int64_t tower_size(const JsonReader& config, const char* key, int64_t usual, int64_t most) {
    const int64_t value = config.integer(key).value_or(usual);
    if (value < 1 || value > most) config[key].refuse(cat("1 to ", most));
    return value;
}

std::vector<int64_t> tower_layers(const JsonReader& config, const char* key, std::vector<int64_t> usual,
                                  const spec::VisionSpec& vision) {
    const std::vector<int64_t> layers = config.has(key) ? config.integers(key) : std::move(usual);
    for (const int64_t layer : layers)
        if (layer < 0 || layer >= vision.depth) config[key].refuse(cat("layers from 0 to ", vision.depth - 1));
    return layers;
}

void read_qwen2_5_vision(const JsonReader& config, spec::ModelSpec& spec) {
    const JsonReader tower = config.at("vision_config");
    spec::VisionSpec vision = read_common(config, tower, spec,
                                          {.hidden_size = 3584,
                                           .intermediate_size = 3420,
                                           .depth = 32,
                                           .num_heads = 16,
                                           .patch_size = 14,
                                           .merge = 2,
                                           .rms_norm = true,
                                           .gated_mlp = true,
                                           .image_mean = {0.48145466, 0.4578275, 0.40821073},
                                           .image_std = {0.26862954, 0.26130258, 0.27577711}},
                                          "silu");
    const int64_t window = tower_size(tower, "window_size", 112), token = vision.patch_size * vision.merge;
    if (window < token) tower["window_size"].refuse(cat("at least a token's ", token, " pixels"));
    vision.window = window / token;
    vision.unwindowed = tower_layers(tower, "fullatt_block_indexes", {7, 15, 23, 31}, vision);
    spec.vision = std::move(vision);
}

void read_qwen3_vision(const JsonReader& config, spec::ModelSpec& spec) {
    const JsonReader tower = config.at("vision_config");
    spec::VisionSpec vision = read_common(config, tower, spec,
                                          {.hidden_size = 1152,
                                           .intermediate_size = 4304,
                                           .depth = 27,
                                           .num_heads = 16,
                                           .patch_size = 16,
                                           .merge = 2,
                                           .patch_bias = true,
                                           .image_mean = {0.5, 0.5, 0.5},
                                           .image_std = {0.5, 0.5, 0.5}},
                                          "gelu_pytorch_tanh");
    const int64_t positions = tower_size(tower, "num_position_embeddings", 2304);
    vision.position_side = std::llround(std::sqrt(static_cast<double>(positions)));
    if (vision.position_side * vision.position_side != positions)
        tower["num_position_embeddings"].refuse("a square number");
    vision.deepstack = tower_layers(tower, "deepstack_visual_indexes", {8, 16, 24}, vision);
    if (!std::ranges::is_sorted(vision.deepstack, std::less_equal()))
        tower["deepstack_visual_indexes"].refuse("layers in ascending order");
    if (static_cast<int64_t>(vision.deepstack.size()) > spec.num_layers)
        tower["deepstack_visual_indexes"].refuse(cat("at most the text part's ", spec.num_layers, " layers"));
    spec.vision = std::move(vision);
}

void read_image_values(const std::filesystem::path& folder, spec::VisionSpec& vision) {
    for (const char* const name : {"processor_config.json", "preprocessor_config.json"}) {
        const std::filesystem::path path = folder / name;
        std::error_code ignored;
        if (!std::filesystem::exists(path, ignored)) continue;
        const auto json = parse_json<OrderedJson>(read_file(path), path.string());
        const JsonReader file(json, path.string());
        const JsonReader values = file.object("image_processor").value_or(file);
        for (const char* const step : {"do_normalize", "do_rescale"})
            if (!values.boolean(step).value_or(true)) values[step].refuse("true");
        if (std::abs(values.number("rescale_factor").value_or(1.0 / 255) - 1.0 / 255) > 1e-9)
            values["rescale_factor"].refuse("1/255");
        if (values.has("image_mean")) vision.image_mean = channel_values(values, "image_mean", false);
        if (values.has("image_std")) vision.image_std = channel_values(values, "image_std", true);
        if (values.has("image_mean")) return;
    }
}

}  // namespace unsloth::formats
