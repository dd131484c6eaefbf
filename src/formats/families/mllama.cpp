// mllama (Llama 3.2 Vision): Llama, with layers whose keys and values are of image features, and a tower over tiles.
#include <algorithm>

#include "formats/families/family.h"
#include "unsloth/core/error.h"

namespace unsloth::formats {
namespace {

/// Rows of embed_tokens beyond the vocabulary: `<|image|>`, and more that no token has.
constexpr int64_t extra_embeddings = 8;

void read_cross_layers(const JsonReader& config, spec::ModelSpec& spec) {
    const std::vector<int64_t> listed = config.has("cross_attention_layers")
                                            ? config.integers("cross_attention_layers")
                                            : std::vector<int64_t>{3, 8, 13, 18, 23, 28, 33, 38};
    for (const int64_t layer : listed) {
        if (layer < 0 || layer >= spec.num_layers)
            config["cross_attention_layers"].refuse(cat("layers from 0 to ", spec.num_layers - 1));
        spec.layers[static_cast<std::size_t>(layer)].crosses = true;
    }
    spec.extra_embeddings = extra_embeddings;
    if (spec.tie_word_embeddings)
        throw Error("model.unsupported", cat(config["tie_word_embeddings"].where(), ": true is not supported for ",
                                             spec.model_type, ", whose embeddings have more rows than lm_head"));
}

void write_cross_layers(const spec::ModelSpec& spec, Json& config) {
    Json listed = Json::array();
    for (int64_t layer = 0; layer < spec.num_layers; ++layer)
        if (spec.crosses(layer)) listed.push_back(layer);
    config["cross_attention_layers"] = std::move(listed);
}

constexpr FamilyKeys mllama_keys = {read_cross_layers, write_cross_layers};

/// Rows and columns of tiles, by their ids.
std::vector<std::array<int32_t, 2>> read_arrangements(const JsonReader& tower, int64_t most) {
    constexpr const char* key = "supported_aspect_ratios";
    std::vector<std::array<int32_t, 2>> read;
    if (!tower.has(key)) {
        for (int32_t height = 1; height <= most; ++height)
            for (int32_t width = 1; height * width <= most; ++width) read.push_back({height, width});
        return read;
    }
    const JsonReader list = tower[key];
    for (std::size_t i = 0; i < list.size(); ++i) {
        const JsonReader pair = list.at(i);
        if (pair.size() != 2) pair.refuse("two numbers");
        const int64_t height = pair.at(0).integer(), width = pair.at(1).integer();
        if (height < 1 || width < 1 || height > most || width > most || height * width > most)
            pair.refuse(cat("up to ", most, " tiles"));
        read.push_back({static_cast<int32_t>(height), static_cast<int32_t>(width)});
    }
    return read;
}

}  // namespace

constinit const Family mllama_family = {
    .model_type = "mllama_text_model",
    .class_name = "MllamaForCausalLM",
    .gguf = {.name = ""},
    .head_dim_key = false,
    .keys = &mllama_keys,
    .defaults = R"({"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 40,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05,
        "rope_theta": 500000.0, "bos_token_id": 128000, "eos_token_id": 128001, "pad_token_id": 128004})"};

void read_mllama_vision(const JsonReader& config, spec::ModelSpec& spec) {
    constexpr int64_t usual_image_token = 128256;
    const JsonReader tower = config.at("vision_config");
    spec::VisionSpec vision;
    spec::TilesSpec tiles;
    if (const auto given = tower.string("hidden_act"); given && *given != "gelu")
        throw Error("model.unsupported",
                    cat(tower["hidden_act"].where(), ": '", *given, "' is not supported; expected gelu"));
    if (tower.integer("num_channels").value_or(spec::VisionSpec::channels) != spec::VisionSpec::channels)
        tower["num_channels"].refuse(std::to_string(spec::VisionSpec::channels));
    vision.hidden_size = tower_size(tower, "hidden_size", 1280);
    vision.intermediate_size = tower_size(tower, "intermediate_size", 5120);
    vision.depth = tower_size(tower, "num_hidden_layers", 32, most_tower_layers);
    tiles.global_depth = tower_size(tower, "num_global_layers", 8, most_tower_layers);
    vision.num_heads = tower_size(tower, "attention_heads", 16);
    if (vision.hidden_size % vision.num_heads != 0) tower["hidden_size"].refuse("a multiple of attention_heads");
    vision.patch_size = tower_size(tower, "patch_size", 14, 256);
    const int64_t side = tower_size(tower, "image_size", 448);
    if (side % vision.patch_size != 0) tower["image_size"].refuse("a multiple of patch_size");
    tiles.side = side / vision.patch_size;
    tiles.most = tower_size(tower, "max_num_tiles", 4, 64);
    tiles.arrangements = read_arrangements(tower, tiles.most);
    tiles.chosen = tower_layers(tower, "intermediate_layers_indices", {3, 7, 15, 23, 30}, vision);
    const int64_t features = vision.hidden_size * (1 + static_cast<int64_t>(tiles.chosen.size()));
    if (tower_size(tower, "vision_output_dim", features) != features)
        tower["vision_output_dim"].refuse(cat(features, ", of hidden_size and intermediate_layers_indices"));
    vision.norm_eps = tower.number("norm_eps").value_or(1e-5);
    if (!(vision.norm_eps > 0)) tower["norm_eps"].refuse("more than 0");
    vision.out_size = spec.hidden_size;
    vision.merge = 1;
    vision.image_mean = {0.48145466, 0.4578275, 0.40821073};
    vision.image_std = {0.26862954, 0.26130258, 0.27577711};
    const int64_t token = config.integer("image_token_index").value_or(usual_image_token);
    if (token < 0 || token >= spec.embedding_rows()) config["image_token_index"].refuse("an id of the embeddings");
    vision.image_token = static_cast<int32_t>(token);
    vision.tiles = std::move(tiles);
    spec.vision = std::move(vision);
}

}  // namespace unsloth::formats
