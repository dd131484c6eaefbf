// A frozen tower over an image's tiles (spec::TilesSpec), forward, and where its features lie among a micro-batch's.
#pragma once

#include <vector>

#include "unsloth/data/batch.h"
#include "unsloth/model/activations.h"
#include "unsloth/model/kept_features.h"
#include "unsloth/ops/context.h"
#include "unsloth/ops/range_attention.h"
#include "unsloth/weights/vision_weights.h"

namespace unsloth::model {

/// The first rows of an image's features: those of its own tiles, and those of padding.
struct TilePlace {
    int64_t own = 0, padding = 0;
};

/// The features of one segment: rows [first, first + rows).
struct SegmentFeatures {
    int32_t token = 0;  ///< the segment's first
    int64_t first = 0, rows = 0;
};

/// What a micro-batch's tokens see of its images' features. A segment's features lie together: those of all its
/// images' own tiles in the order of their tokens, then those of padding.
struct ImageSight {
    std::vector<TilePlace> places;            ///< of each image
    std::vector<ops::AttentionRange> ranges;  ///< of tokens over features
    std::vector<SegmentFeatures> segments;    ///< of those with images
    int64_t rows = 0;                         ///< of all features
    /// [T] 1 for tokens of segments with images, which all attend; and for those that an image's token precedes, or
    /// which are one: the MLP adds to no others. Else 0.
    std::vector<float> attends, adds;
};
/// segments: as data::Batch::segments. An image's token, and what follows up to the next one's, sees the image's own
/// tiles; tokens of images in a row are one, so that what follows sees all of these. What comes before a segment's
/// first image sees all tiles of all of its images, with those of padding, as in transformers.
ImageSight sight_of(const spec::VisionSpec& spec, const std::vector<data::Image>& images,
                    const std::vector<int32_t>& segments);

/// Fills b.features at each image's place, its first D columns; `kept` as see_images()'.
void see_tiles(ops::Context& ctx, const spec::VisionSpec& spec, const weights::VisionWeights& w, const VisionBuffers& b,
               const std::vector<data::Image>& images, const std::vector<TilePlace>& places,
               KeptFeatures* kept = nullptr);

}  // namespace unsloth::model
