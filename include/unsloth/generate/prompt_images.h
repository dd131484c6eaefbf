// The images of a prompt: what the tower sees, where their tokens stand, and what tells two of them apart.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "unsloth/data/batch.h"
#include "unsloth/spec/vision_spec.h"

namespace unsloth::generate {

struct PromptImages {
    /// Of an image's tokens, one after another.
    struct Place {
        int32_t first = 0, count = 0;  ///< index among the prompt's ids
        /// SHA-256 of the pixels and their grid, so that no client can make an image that passes for another.
        std::array<int32_t, 8> content = {};
        int32_t end() const { return first + count; }
    };
    std::vector<data::Image> images;  ///< with pixels; `first` counts the prompt's ids
    std::vector<Place> places;        ///< of each image, in the order of the ids
    std::vector<int32_t> axes_T3;     ///< Sample::axes of the prompt; empty where positions have one axis
    int32_t offset = 0;  ///< of the positions of later tokens from their index: transformers calls it rope_deltas

    /// `prompt` has the pixels of its images, and its axes. CheckError otherwise.
    PromptImages(const data::Sample& prompt, const spec::VisionSpec& tower);

    int64_t patches() const;        ///< of the largest image
    int64_t longest_image() const;  ///< tokens of the largest image
    /// The place that has the token before `end` and the one there: an image that is cut by it. nullptr: none is.
    const Place* cut_by(int64_t end) const;
    /// Whether tokens of [begin, end) are the image's.
    static bool lies_in(const Place& place, int64_t begin, int64_t end) {
        return place.first < end && place.end() > begin;
    }
};

/// How many images a model whose layers cross has room for, of `rows` prompts that run at a time, of up to `images`
/// each (0: it is not known): all, or eight if those of one prompt are no more.
int64_t room_for_tiled(int64_t rows, int64_t images);

}  // namespace unsloth::generate
