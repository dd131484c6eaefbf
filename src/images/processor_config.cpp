// The settings of a model's image processor, as transformers 4 and 5 write them.
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>

#include "unsloth/core/files.h"
#include "unsloth/core/json.h"
#include "unsloth/core/json_reader.h"
#include "unsloth/images/processor.h"

namespace unsloth::images {
namespace {

using Reader = JsonReader<nlohmann::json>;

[[noreturn]] void refuse(const Reader& value, const std::string& what) {
    throw Error("image.processor", cat(value.where(), ": ", what),
                "Image processors of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and mllama are implemented.");
}

/// The class without what only says how it computes: Fast, Pil.
Layout layout_of(const Reader& config) {
    const Reader type = config.at("image_processor_type");
    std::string_view name = type.string();
    for (const std::string_view suffix : {"Fast", "Pil"})
        if (name.ends_with(suffix)) name.remove_suffix(suffix.size());
    if (name == "Qwen2VLImageProcessor" || name == "Qwen2_5_VLImageProcessor" || name == "Qwen3VLImageProcessor")
        return Layout::patches;
    if (name == "MllamaImageProcessor") return Layout::tiles;
    refuse(type, cat("the image processor ", shown(type.value()), " is not implemented"));
}

Filter filter_of(const Reader& config, Filter fallback) {
    const auto found = config.integer("resample");
    if (!found) return fallback;
    constexpr int64_t pillow_bilinear = 2, pillow_bicubic = 3;
    if (*found == pillow_bilinear) return Filter::bilinear;
    if (*found == pillow_bicubic) return Filter::bicubic;
    refuse(config["resample"], cat("resampling ", *found, " is not implemented, only 2 (bilinear) and 3 (bicubic)"));
}

std::array<double, 3> channels_of(const Reader& config, const char* key, const std::array<double, 3>& fallback) {
    if (!config.has(key)) return fallback;
    const Reader list = config[key];
    list.require(list.size() == 3, "three numbers");
    return {list.at(0).number(), list.at(1).number(), list.at(2).number()};
}

/// Steps that always are done here.
void require_steps(const Reader& config, std::initializer_list<const char*> steps) {
    for (const char* step : steps)
        if (!config.boolean(step).value_or(true))
            refuse(config[step], "an image processor without it is not implemented");
    for (const char* step : {"do_center_crop", "do_image_splitting"})
        if (config.boolean(step).value_or(false)) refuse(config[step], "this is not implemented");
}

int32_t side_of(const Reader& config, const char* key, int32_t fallback, int64_t most) {
    const int64_t value = config.integer(key).value_or(fallback);
    if (value < 1 || value > most) refuse(config[key], cat("expected a number from 1 to ", most));
    return static_cast<int32_t>(value);
}

void read_patches(const Reader& config, Processor& processor) {
    constexpr int64_t longest_patch = 256, largest_merge = 16;
    processor.patch = side_of(config, "patch_size", processor.patch, longest_patch);
    processor.merge = side_of(config, "merge_size", processor.merge, largest_merge);
    const auto bound = [&](const char* edge, const char* older, int64_t fallback) {
        if (const auto own = config.integer(older)) return *own;  // transformers lets it win
        if (!config.has("size")) return fallback;
        const Reader size = config["size"];
        if (const auto named = size.integer(edge)) return *named;
        if (const auto named = size.integer(older)) return *named;
        refuse(size, cat("neither ", edge, " nor ", older, " is there"));
    };
    processor.least_pixels = bound("shortest_edge", "min_pixels", processor.least_pixels);
    processor.most_pixels = bound("longest_edge", "max_pixels", processor.most_pixels);
    if (processor.least_pixels < 1 || processor.most_pixels < processor.least_pixels ||
        processor.most_pixels > max_pixels)
        refuse(config, cat("images of ", processor.least_pixels, " to ", processor.most_pixels,
                           " pixels are not implemented: 1 to ", max_pixels, " are"));
}

void read_tiles(const Reader& config, Processor& processor) {
    constexpr int64_t longest_tile = 4096, most_tiles = 64;
    if (config.has("size")) {
        const Reader size = config["size"];
        processor.tile = side_of(size, "height", processor.tile, longest_tile);
        if (size.integer("width").value_or(processor.tile) != processor.tile)
            refuse(size, "tiles that are not square are not implemented");
    }
    processor.most_tiles = side_of(config, "max_image_tiles", processor.most_tiles, most_tiles);
}

Processor processor_of(const Reader& config) {
    Processor processor;
    processor.layout = layout_of(config);
    const bool tiles = processor.layout == Layout::tiles;
    require_steps(config, {"do_resize", "do_rescale", "do_normalize", "do_convert_rgb"});
    if (tiles) require_steps(config, {"do_pad"});
    processor.filter = filter_of(config, tiles ? Filter::bilinear : Filter::bicubic);
    processor.rescale = config.number("rescale_factor").value_or(processor.rescale);
    constexpr std::array<double, 3> clip_mean{0.48145466, 0.4578275, 0.40821073},
        clip_std{0.26862954, 0.26130258, 0.27577711}, half{0.5, 0.5, 0.5};
    processor.mean = channels_of(config, "image_mean", tiles ? half : clip_mean);
    processor.std = channels_of(config, "image_std", tiles ? half : clip_std);
    for (const double one : processor.std)
        if (one <= 0) refuse(config["image_std"], "a standard deviation must be positive");
    tiles ? read_tiles(config, processor) : read_patches(config, processor);
    return processor;
}

}  // namespace

std::optional<Processor> read_processor(const std::filesystem::path& model_folder) {
    const std::filesystem::path whole = model_folder / "processor_config.json";
    if (std::filesystem::exists(whole)) {
        const auto json = parse_json<nlohmann::json>(read_file(whole), whole.string());
        const Reader config(json, whole.string());
        if (config.has("image_processor")) return processor_of(config["image_processor"]);
    }
    const std::filesystem::path alone = model_folder / "preprocessor_config.json";
    if (!std::filesystem::exists(alone)) return std::nullopt;
    const auto json = parse_json<nlohmann::json>(read_file(alone), alone.string());
    return processor_of(Reader(json, alone.string()));
}

std::string describe(const Processor& processor) {
    const auto& [layout, filter, rescale, mean, std, shrink_to, patch, merge, least, most, tile, tiles] = processor;
    const auto exact = [](double value) {
        char text[32];
        std::snprintf(text, sizeof text, "%.17g", value);
        return std::string(text);
    };
    std::string text = layout == Layout::tiles
                           ? cat("tiles ", tile, " x ", tiles)
                           : cat("patches ", patch, " merged ", merge, " pixels ", least, " to ", most);
    text += cat(filter == Filter::bilinear ? " bilinear " : " bicubic ", exact(rescale));
    for (std::size_t c = 0; c < 3; ++c) text += cat(" ", exact(mean[c]), "/", exact(std[c]));
    if (shrink_to > 0) text += cat(" of at most ", shrink_to, " pixels");
    return text;
}

}  // namespace unsloth::images
