// What rows with images need to know of a model with a vision tower, and its images' pixels.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "unsloth/data/batch.h"
#include "unsloth/data/kept_images.h"
#include "unsloth/images/processor.h"

namespace unsloth::data {

struct VisionRows {
    images::Processor processor;
    int32_t image_token = -1;  ///< the id of each token of an image
    bool three_axes = false;   ///< the model's positions are of time, height and width (M-RoPE)
    std::string missing;       ///< what the folder lacks, so that rows with images are refused; empty: nothing

    int64_t tokens_of(const Image& image) const { return images::tokens_of(processor, {image.grid_h, image.grid_w}); }
};

/// Of a model folder whose model_type is one of those with a tower here; null for another. Input Error for one without
/// a token of images, and as images::read_processor. `image_max_pixels`: see images::Processor::shrink_to.
std::shared_ptr<const VisionRows> read_vision_rows(const std::filesystem::path& model_folder, int64_t image_max_pixels);

/// All of it that encoded rows depend on, in one line.
std::string describe(const VisionRows& vision);

/// [T, 3] positions of a row, from 0 on in each segment, as transformers' get_rope_index: an image's tokens have the
/// time of its place, and their row and column beyond that; the text continues after the largest of them.
std::vector<int32_t> axes_of(const Sample& row, const VisionRows& vision);

/// Decodes the images of rows that have none of their pixels yet, with several threads. Input Error for a file that
/// cannot be read, and for one that changed since the rows were encoded. With `kept` each image gets its content; of
/// equal ones one is decoded, and none of those that are kept.
void load_pixels(std::vector<Sample>& rows, const VisionRows& vision, const KeptImages* kept = nullptr);

}  // namespace unsloth::data
