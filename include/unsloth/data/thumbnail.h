// Small pictures of rows' images, for pages.
#pragma once

#include <string>
#include <vector>

#include "unsloth/data/vision.h"

namespace unsloth::data {

inline constexpr int32_t thumbnail_side = 96;  ///< pixels at most; 28 kB of them

/// What the model sees of an image with pixels, as a data: URL of a PNG file.
std::string thumbnail_of(const Image& image, const VisionRows& vision);
/// The same of the first `most` images.
std::vector<std::string> thumbnails_of(const std::vector<Image>& images, const VisionRows& vision, std::size_t most);

}  // namespace unsloth::data
