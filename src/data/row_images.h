// The images of conversations, in the forms of several programs, made one form.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "unsloth/data/encoder.h"
#include "unsloth/data/vision.h"

namespace unsloth::data {

/// A place for an image in a text.
inline constexpr std::string_view image_placeholder = "<image>";

/// Whether a row has a place for an image: a content part {type: image} or {type: image_url} of a message (in messages,
/// conversations, prompt and completion), or `<image>` in a message's text of a row with a column images or image.
bool has_image_places(const nlohmann::ordered_json& row);

/// Takes the images out of a row: what is left has a content part {type: image} at each place, between the texts, and
/// no column images or image. The images' values are returned in the order of their places: a part's own (its image,
/// path, base64, bytes, url or image_url), else the next one of the columns. BadRow image.count where these are too few
/// or too many, data.message-shape for a part of another form.
std::vector<nlohmann::ordered_json> take_images(nlohmann::ordered_json& row);

/// Puts the tokens of each image in the place of the one token that the template writes for it, and moves what is
/// trained. BadRow image.count where the template writes other than one for each.
void expand_images(EncodedRow& row, std::vector<Image> images, const VisionRows& vision);

}  // namespace unsloth::data
