// The patches of some images, in the order in which a tower sees them.
#pragma once

#include <vector>

#include "model/copy_values.h"
#include "model/tower_parts.h"
#include "unsloth/core/error.h"
#include "unsloth/data/batch.h"
#include "unsloth/model/activations.h"
#include "unsloth/ops/rope.h"
#include "unsloth/spec/vision_spec.h"
#include "unsloth/weights/vision_weights.h"

namespace unsloth::model {

/// Some images' patches, one image after another.
struct Patches {
    int64_t count = 0;
    spec::PatchOrder order;  ///< of all: tokens are numbers among those of all images. Without PatchOrder::patches
    spec::PatchPositions learned;
    std::vector<int32_t> images = {0};  ///< offsets of the images' patches, from 0 to count
    std::vector<uint8_t> pixels;

    Patches(const spec::VisionSpec& spec, const std::vector<data::Image>& from) {
        order.windows = {0};
        for (const data::Image& image : from) add(spec, image);
    }

  private:
    void add(const spec::VisionSpec& spec, const data::Image& image) {
        const spec::PatchOrder own = spec::patch_order(spec, image.grid_h, image.grid_w);
        const auto before = static_cast<int32_t>(count), tokens = static_cast<int32_t>(order.tokens.size());
        const auto append = [](auto& to, const auto& more) { to.insert(to.end(), more.begin(), more.end()); };
        add_pixels(spec, image, own);
        append(order.rows, own.rows);
        append(order.columns, own.columns);
        for (const int32_t token : own.tokens) order.tokens.push_back(tokens + token);
        for (std::size_t i = 1; i < own.windows.size(); ++i) order.windows.push_back(before + own.windows[i]);
        if (spec.position_side > 0) {
            const spec::PatchPositions positions = spec::patch_positions(spec, own, image.grid_h, image.grid_w);
            append(learned.index, positions.index);
            append(learned.share, positions.share);
        }
        count += image.patches();
        images.push_back(static_cast<int32_t>(count));
    }
    void add_pixels(const spec::VisionSpec& spec, const data::Image& image, const spec::PatchOrder& own) {
        const auto bytes = static_cast<std::size_t>(spec.patch_bytes());
        UNSLOTH_CHECK(image.pixels && image.pixels->size() == static_cast<std::size_t>(image.patches()) * bytes,
                      "an image of ", image.grid_h, " x ", image.grid_w, " patches has ",
                      image.pixels ? image.pixels->size() : 0, " bytes");
        for (const int32_t patch : own.patches) {
            const uint8_t* const first = image.pixels->data() + static_cast<std::size_t>(patch) * bytes;
            pixels.insert(pixels.end(), first, first + bytes);
        }
    }
};

/// Uploads the positions of patches, and makes the tables that turn their heads.
inline void make_patch_rotation(ops::Context& ctx, const spec::VisionSpec& spec, const weights::VisionWeights& w,
                                const VisionBuffers& b, const Patches& of) {
    std::vector<int32_t> places;
    for (std::size_t i = 0; i < of.order.rows.size(); ++i) {
        places.push_back(of.order.rows[i]);
        places.push_back(of.order.columns[i]);
    }
    copy_values(places, b.positions);
    copy_values(of.order.tokens, b.tokens);
    const int64_t pairs = spec.head_dim() / 2;
    ops::rope_table(ctx, matrix_of(b.positions, of.count, 2), w.inv_freq_p, 1.0, matrix_of(b.cos, of.count, pairs),
                    matrix_of(b.sin, of.count, pairs), w.axis_p);
}

/// Images that pass a tower together, and where their features begin among the micro-batch's.
struct SeenTogether {
    std::vector<data::Image> images;
    int64_t feature = 0;
};
/// Those of a micro-batch, each whose pixels no image before has: as many at a time as b has room for where `together`,
/// else one after another.
std::vector<SeenTogether> seen_together(const spec::VisionSpec& spec, const VisionBuffers& b,
                                        const std::vector<data::Image>& images, bool together);

/// What enters a block (of number `depth`: what leaves the last) for patches whose features begin at `feature`.
inline at::Tensor block_input(const spec::VisionSpec& spec, const VisionBuffers& b, int64_t block, int64_t feature,
                              int64_t patches) {
    const int64_t first = feature * spec.merge * spec.merge * spec.hidden_size;
    return matrix_of(b.backward.inputs.select(0, block).narrow(0, first, patches * spec.hidden_size), patches,
                     spec.hidden_size);
}

}  // namespace unsloth::model
