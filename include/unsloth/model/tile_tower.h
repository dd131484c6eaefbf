// A tower over an image's tiles (spec::TilesSpec), forward and backward, and where its features are among a
// micro-batch's.
#pragma once

#include <span>
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
    int32_t adapter = -1;  ///< which of several makes their keys; -1: none of them
};

/// What the tokens of one row see of its images' features, which are contiguous: those of all its images' own tiles in
/// the order of their tokens, then those of padding.
struct RowSight {
    std::vector<TilePlace> places;            ///< of each image
    std::vector<ops::AttentionRange> ranges;  ///< of the row's tokens over features
    int64_t rows = 0;                         ///< of its features
    int32_t first_image = 0;  ///< its token: what comes before sees all images, and the MLP adds nothing
};
/// Of tokens [begin, end), among which the images' tokens are; features from row `first` on. An image's token, and what
/// follows up to the next one's, sees the image's own tiles; tokens of images in a row are one, so that what follows
/// sees all of these. What comes before the first image sees all tiles of all images, with those of padding, as in
/// transformers. There is one image at least.
RowSight row_sight(const spec::VisionSpec& spec, std::span<const data::Image> images, int64_t first, int32_t begin,
                   int32_t end);

/// What a micro-batch's tokens see of its images' features.
struct ImageSight {
    std::vector<TilePlace> places;            ///< of each image that the tower sees
    std::vector<ops::AttentionRange> ranges;  ///< of tokens over features
    std::vector<SegmentFeatures> segments;    ///< whose keys are made; in generation others are there from before
    int64_t rows = 0;                         ///< of all features
    /// [T] 1 for tokens of segments with images, which all attend; and for those that an image's token precedes, or
    /// which are one: the MLP adds to no others. Else 0.
    std::vector<float> attends, adds;

    /// Tokens [from, from + count) of a row, which follow those that are here; of a row without images nullptr.
    void add_tokens(const RowSight* row, int64_t from, int64_t count);
    int64_t made() const;  ///< rows of features whose keys are made
};
/// segments: as data::Batch::segments.
ImageSight sight_of(const spec::VisionSpec& spec, const std::vector<data::Image>& images,
                    const std::vector<int32_t>& segments);

/// Fills b.features at each image's place, its first D columns. Images that share their pixels are seen once; `adapted`
/// and `kept` as see_images()'.
void see_tiles(ops::Context& ctx, const spec::VisionSpec& spec, const weights::VisionWeights& w, const VisionBuffers& b,
               const std::vector<data::Image>& images, const std::vector<TilePlace>& places, bool adapted,
               KeptFeatures* kept = nullptr);
/// After see_tiles of the same images, adapted: adds the gradients of the adapters, whose parameters `parameters` are,
/// from that of the features in b.backward.dfeatures. A block is computed again from what entered it.
void see_tiles_backward(ops::Context& ctx, const spec::VisionSpec& spec, const weights::VisionWeights& w,
                        const VisionBuffers& b, const std::vector<data::Image>& images,
                        const std::vector<TilePlace>& places, const weights::Parameters& parameters);

}  // namespace unsloth::model
