// Prompts with images: conversations as rows have them, whose images are read but not trained on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "unsloth/data/batch.h"
#include "unsloth/data/vision.h"

namespace unsloth::data {

/// Whether a row has images: a content part {type: image} or {type: image_url} of a message, or a column images or
/// image.
bool shows_images(const nlohmann::ordered_json& row);

/// A text that says nowhere where its images stand has them before it, as `<image>`.
std::string with_image_places(const std::string& text, std::size_t images);

/// A user's message of a text and these images, which become parts of it, each with its image: at each `<image>` of the
/// text one, or all before a text without any. Input Error image.count for other numbers of these.
nlohmann::ordered_json user_message(const std::string& text, const std::vector<std::string>& images);

/// The prompt's ids, and where its images stand; no image is decoded, and labels are none. `encode` makes ids of the
/// row with a part {type: image} at each place, of which the template writes one token each. Paths of images are below
/// `root`, links resolved. Input Errors image.* for images that cannot be had, for numbers of images and places that
/// differ, and where the model lacks a processor.
Sample place_images(nlohmann::ordered_json row, const VisionRows& vision, const std::filesystem::path& root,
                    const std::function<std::vector<int32_t>(const nlohmann::ordered_json& row)>& encode);

/// Decodes the images, and gives all ids their positions (Sample::axes, where the model has three axes). Input Errors
/// as load_pixels().
void see_images_of(Sample& prompt, const VisionRows& vision);

}  // namespace unsloth::data
