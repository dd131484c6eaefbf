#include "unsloth/data/seen_prompt.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "data/columns.h"
#include "data/image_source.h"
#include "data/row_images.h"
#include "unsloth/core/error.h"
#include "unsloth/data/reader.h"

namespace unsloth::data {
namespace {

void require_processor(const VisionRows& vision) {
    if (vision.missing.empty()) return;
    throw Error("image.processor", cat("the prompt has images, and ", vision.missing),
                "Copy preprocessor_config.json of the model into its folder: it says how images are resized.");
}

/// What is wrong with a row is an input Error.
template <class Read>
auto refusing_bad_rows(const Read& read) {
    try {
        return read();
    } catch (const BadRow& bad) {
        throw Error(bad.id, bad.message, bad.advice);
    }
}

}  // namespace

bool shows_images(const nlohmann::ordered_json& row) {
    return has_image_places(row) || says_something(row, "images") || says_something(row, "image");
}

std::string with_image_places(const std::string& text, std::size_t images) {
    if (text.find(image_placeholder) != std::string::npos) return text;
    std::string places;
    for (std::size_t i = 0; i < images; ++i) places += image_placeholder;
    return places + text;
}

nlohmann::ordered_json user_message(const std::string& text, const std::vector<std::string>& images) {
    nlohmann::ordered_json message = {{"role", "user"}, {"content", text}};
    if (images.empty()) return message;
    message["content"] = with_image_places(text, images.size());
    nlohmann::ordered_json row = {{"messages", nlohmann::ordered_json::array({message})}, {"images", images}};
    const std::vector<nlohmann::ordered_json> values = refusing_bad_rows([&] { return take_images(row); });
    std::size_t next = 0;
    for (nlohmann::ordered_json& part : row["messages"][0]["content"])
        if (part["type"] == "image") part["image"] = values[next++];
    return row["messages"][0];
}

Sample place_images(nlohmann::ordered_json row, const VisionRows& vision, const std::filesystem::path& root,
                    const std::function<std::vector<int32_t>(const nlohmann::ordered_json& row)>& encode) {
    require_processor(vision);
    return refusing_bad_rows([&] {
        Sample prompt;
        std::vector<Image> images;
        for (const nlohmann::ordered_json& value : take_images(row)) {
            const ImageSource& source =
                prompt.sources.emplace_back(image_source(value, root, cat("image ", images.size() + 1)));
            const images::Grid grid = images::grid_of(vision.processor, size_of(source));
            images.push_back({.grid_h = grid.height, .grid_w = grid.width});
        }
        EncodedRow encoded{.ids = encode(row), .trained = {}};
        expand_images(encoded, std::move(images), vision);
        prompt.ids = std::move(encoded.ids);
        prompt.images = std::move(encoded.images);
        return prompt;
    });
}

void see_images_of(Sample& prompt, const VisionRows& vision) {
    std::vector<Sample> one;
    one.push_back(std::move(prompt));
    load_pixels(one, vision);
    prompt = std::move(one.front());
    if (vision.three_axes) prompt.axes = axes_of(prompt, vision);
}

}  // namespace unsloth::data
