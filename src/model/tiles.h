// Where an image's rows are in a tower over tiles, on both ways: an image's own tiles first, then those of padding,
// then the zeros that fill tiles up.
#pragma once

#include <algorithm>
#include <vector>

#include "model/tower_parts.h"
#include "unsloth/data/batch.h"
#include "unsloth/model/activations.h"
#include "unsloth/model/tile_tower.h"
#include "unsloth/spec/vision_spec.h"

namespace unsloth::model {

inline constexpr double outer_norm_eps = 1e-5;  // of the norms around the layers, whatever config.json says

/// Features of an image's own tiles.
inline int64_t own_features(const spec::VisionSpec& spec, const data::Image& image) {
    return image.patches() * spec.tiles->rows();
}

/// Padding does not see padding; everything else sees everything. `own`: tiles of the image.
inline std::vector<ops::AttentionRange> tile_ranges(const spec::VisionSpec& spec, int64_t own) {
    const auto real = static_cast<int32_t>(own * spec.tiles->rows()),
               all = static_cast<int32_t>(spec.tiles->tower_rows());
    std::vector<ops::AttentionRange> ranges = {{0, real, 0, all}};
    if (real < all) ranges.push_back({real, all, 0, real});
    return ranges;
}

/// Rows of the tower, and their features among the micro-batch's.
struct TilePiece {
    int64_t first = 0, rows = 0, feature = 0;
};
/// An image's own tiles and those of padding.
inline std::vector<TilePiece> tile_pieces(const spec::VisionSpec& spec, int64_t own_tiles, const TilePlace& place) {
    const int64_t own = own_tiles * spec.tiles->rows(), all = spec.tiles->features();
    std::vector<TilePiece> pieces = {{0, own, place.own}};
    if (own < all) pieces.push_back({own, all - own, place.padding});
    return pieces;
}

/// The outputs of the last layer and of the chosen ones, which the projector reads.
inline at::Tensor stacked_outputs(const spec::VisionSpec& spec, const VisionBuffers& b) {
    const auto parts = 1 + static_cast<int64_t>(spec.tiles->chosen.size());
    return matrix_of(b.stacked, spec.tiles->features(), parts * spec.hidden_size);
}

/// What is kept of an image of the micro-batch (TowerBackward::inputs).
inline at::Tensor tile_slot(const spec::VisionSpec& spec, const VisionBuffers& b, int64_t slot, int64_t image) {
    const int64_t rows = spec.tiles->tower_rows(), c = spec.hidden_size;
    return matrix_of(b.backward.inputs.select(0, slot).narrow(0, image * rows * c, rows * c), rows, c);
}

/// The first image that has the same pixels.
inline std::size_t first_of(const std::vector<data::Image>& images, std::size_t i) {
    const auto same = std::ranges::find_if(images, [&](const data::Image& one) { return one.same_as(images[i]); });
    return static_cast<std::size_t>(same - images.begin());
}

}  // namespace unsloth::model
