// Legend: P rows of the tower, C its hidden size, H heads, d head_dim, F intermediate, D the text model's hidden size.
// Rows: tile after tile its class embedding and patches, an image's own tiles first; then the zeros that make each
// tile's rows a multiple of 8. So rows that are not padding come first.
#include "unsloth/model/tile_tower.h"

#include "model/copy_values.h"
#include "model/tiles.h"
#include "model/tower_parts.h"
#include "unsloth/core/error.h"
#include "unsloth/ops/profiler.h"
#include "unsloth/ops/rows.h"
#include "unsloth/ops/vision.h"

namespace unsloth::model {
namespace {

/// One image's way through the tower.
class TileSight {
  public:
    TileSight(ops::Context& ctx, const spec::VisionSpec& spec, const weights::VisionWeights& w, const VisionBuffers& b,
              const data::Image& image, int64_t number, bool adapted)
        : ctx_(ctx),
          spec_(spec),
          tiles_(*spec.tiles),
          w_(w),
          b_(b),
          own_(image.patches()),
          id_(tiles_.arrangement(image.grid_h, image.grid_w)),
          rows_(tiles_.tower_rows()),
          number_(number),
          u_(adapted ? b.u : at::Tensor()),
          ranges_(tile_ranges(spec, own_)),
          x_PC_(keeps() ? tile_slot(spec, b, 0, number) : matrix_of(b.x, rows_, spec.hidden_size)),
          stacked_(stacked_outputs(spec, b)) {
        embed(image);
    }

    void pass(const TilePlace& place) {
        int64_t slot = 0;
        for (std::size_t layer = 0; layer < w_.blocks.size(); ++layer) {
            keep(++slot);
            block(w_.blocks[layer]);
            for (std::size_t i = 0; i < tiles_.chosen.size(); ++i)
                if (tiles_.chosen[i] == static_cast<int64_t>(layer)) stack(static_cast<int64_t>(i) + 1);
        }
        keep(++slot);
        normalise(w_.norm_post, x_PC_, x_PC_, outer_norm_eps);
        add_behind();
        for (const weights::VisionBlock& global : w_.global_blocks) {
            keep(++slot);
            block(global);
        }
        stack(0);
        for (const TilePiece& piece : tile_pieces(spec_, own_, place))
            multiply(w_.projector, stacked_.narrow(0, piece.first, piece.rows),
                     b_.features.narrow(0, piece.feature, piece.rows).narrow(1, 0, spec_.out_size));
    }

  private:
    /// A backward pass follows.
    bool keeps() const { return b_.backward.inputs.defined(); }
    /// The value of x stays in its slot where a backward pass reads it; x moves to the next slot.
    void keep(int64_t slot) {
        if (!keeps()) return;
        const at::Tensor next_PC = tile_slot(spec_, b_, slot, number_);
        ops::copy_2d(ctx_, x_PC_, next_PC);
        x_PC_ = next_PC;
    }

    void multiply(const weights::VisionLinear& w, const at::Tensor& x, const at::Tensor& out, bool adds = false) {
        model::multiply(ctx_, w, x, out, adds, u_);
    }

    /// The tile of a row: `tiles_.most` rows of zeros follow a tile's own rows of all tiles.
    int64_t tile_of(int64_t row) const {
        const int64_t features = tiles_.features();
        return row < features ? row / tiles_.rows() : (row - features) / ((rows_ - features) / tiles_.most);
    }

    /// Pixels become the first values. Tiles of padding have none: their values are zeros.
    void embed(const data::Image& image) {
        const int64_t side = tiles_.side, p = spec_.patch_size, each = tiles_.patches() * spec_.patch_bytes();
        UNSLOTH_CHECK(
            own_ <= tiles_.most && image.pixels && image.pixels->size() == static_cast<std::size_t>(own_ * each),
            "an image of ", own_, " tiles has ", image.pixels ? image.pixels->size() : 0, " bytes");
        std::vector<uint8_t> patches(image.pixels->size());
        auto out = patches.begin();
        for (int64_t tile = 0; tile < own_; ++tile)
            for (int64_t patch = 0; patch < tiles_.patches(); ++patch)
                for (int64_t line = 0; line < spec::VisionSpec::channels * p; ++line) {  // of a channel each p lines
                    const int64_t channel = line / p, y = patch / side * p + line % p, x = patch % side * p;
                    const auto from = image.pixels->begin() + tile * each + ((channel * side * p + y) * side * p + x);
                    out = std::copy_n(from, p, out);
                }
        copy_values(patches, b_.bytes);
        ops::zero_2d(ctx_, x_PC_);
        const at::Tensor values_PK = matrix_of(b_.wide, tiles_.patches(), spec_.patch_bytes());
        for (int64_t tile = 0; tile < own_; ++tile) {
            ops::patch_values(ctx_, b_.bytes.narrow(0, tile * each, each).view({tiles_.patches(), spec_.patch_bytes()}),
                              w_.value_CB, /*frames=*/1, values_PK);
            multiply({w_.patch_CK, {}}, values_PK, x_PC_.narrow(0, tile * tiles_.rows() + 1, tiles_.patches()));
        }
        add_places();
        const at::Tensor features_PC = x_PC_.narrow(0, 0, tiles_.features());
        normalise(w_.norm_pre, features_PC, features_PC, outer_norm_eps);
    }

    /// Of each row four rows of the table of learned values, and their shares.
    void add_learned(const std::vector<int32_t>& index, const std::vector<float>& share) {
        const auto rows = static_cast<int64_t>(index.size()) / 4;
        copy_values(index, b_.index);
        copy_values(share, b_.share);
        ops::add_interpolated(ctx_, w_.places_NC, matrix_of(b_.index, rows, 4), matrix_of(b_.share, rows, 4),
                              x_PC_.narrow(0, 0, rows));
    }
    int64_t ids() const { return static_cast<int64_t>(tiles_.arrangements.size()) + 1; }
    int64_t class_row() const { return tiles_.rows() + ids() * tiles_.most * tiles_.rows(); }

    void add_places() {
        std::vector<int32_t> index;
        std::vector<float> share;
        for (int64_t row = 0; row < tiles_.features(); ++row) {
            const int64_t tile = tile_of(row), place = row % tiles_.rows(), of_tile = id_ * tiles_.most + tile;
            const bool is_class = place == 0;  // it has no part of what is added to patches
            for (const int64_t number :
                 {place, tiles_.rows() + of_tile * tiles_.rows() + place, class_row(), class_row() + 1 + of_tile})
                index.push_back(static_cast<int32_t>(number));
            for (const float part :
                 {1 - w_.place_gate, w_.place_gate, is_class ? 1.0F : 0.0F, is_class ? 0.0F : w_.before_gate})
                share.push_back(part);
        }
        add_learned(index, share);
    }

    /// Zeros that fill tiles up have a part of this.
    void add_behind() {
        std::vector<int32_t> index;
        std::vector<float> share;
        const int64_t first = class_row() + 1 + ids() * tiles_.most + id_ * tiles_.most;
        for (int64_t row = 0; row < rows_; ++row) {
            index.push_back(static_cast<int32_t>(first + tile_of(row)));
            index.insert(index.end(), 3, 0);
            share.push_back(w_.behind_gate);
            share.insert(share.end(), 3, 0.0F);
        }
        add_learned(index, share);
    }

    /// The layer's output is part `number` of the features.
    void stack(int64_t number) {
        ops::copy_2d(ctx_, x_PC_.narrow(0, 0, tiles_.features()),
                     stacked_.narrow(1, number * spec_.hidden_size, spec_.hidden_size));
    }

    void normalise(const weights::VisionNorm& w, const at::Tensor& x, const at::Tensor& y, double eps) {
        ops::layer_norm_forward(ctx_, x, w.weight, w.bias, eps, y);
    }

    void block(const weights::VisionBlock& w) {
        const int64_t c = spec_.hidden_size, heads = spec_.num_heads, d = spec_.head_dim();
        const at::Tensor h_PC = matrix_of(b_.h, rows_, c), qkv_PN = matrix_of(b_.wide, rows_, 3 * c);
        normalise(w.norm1, x_PC_, h_PC, spec_.norm_eps);
        multiply(w.qkv, h_PC, qkv_PN);
        ops::range_attention_forward(ctx_, tower_attention(spec_), ranges_, heads_of(qkv_PN, 0, heads, d),
                                     heads_of(qkv_PN, c, heads, d), heads_of(qkv_PN, 2 * c, heads, d),
                                     heads_of(h_PC, 0, heads, d));
        multiply(w.proj, h_PC, x_PC_, /*adds=*/true);
        normalise(w.norm2, x_PC_, h_PC, spec_.norm_eps);
        const at::Tensor inner_PF = matrix_of(b_.wide, rows_, spec_.intermediate_size);
        multiply(w.in, h_PC, inner_PF);
        ops::gelu(ctx_, inner_PF, ops::Gelu::erf);
        multiply(w.out, inner_PF, x_PC_, /*adds=*/true);
    }

    ops::Context& ctx_;
    const spec::VisionSpec& spec_;
    const spec::TilesSpec& tiles_;
    const weights::VisionWeights& w_;
    const VisionBuffers& b_;
    const int64_t own_, id_;
    const int64_t rows_, number_;
    const at::Tensor u_;  ///< undefined: without adapters
    const std::vector<ops::AttentionRange> ranges_;
    at::Tensor x_PC_;
    const at::Tensor stacked_;
};

}  // namespace

RowSight row_sight(const spec::VisionSpec& spec, std::span<const data::Image> images, int64_t first, int32_t begin,
                   int32_t end) {
    const spec::TilesSpec& tiles = *spec.tiles;
    RowSight row{.places = std::vector<TilePlace>(images.size()), .ranges = {}, .first_image = images.front().first};
    int64_t next = first;
    for (std::size_t i = 0; i < images.size(); ++i) {
        row.places[i].own = next;
        next += images[i].patches() * tiles.rows();
    }
    for (std::size_t i = 0; i < images.size(); ++i) {
        row.places[i].padding = next;
        next += (tiles.most - images[i].patches()) * tiles.rows();
    }
    row.rows = next - first;
    const auto see = [&](int32_t from, int32_t to, int64_t k_begin, int64_t k_end) {
        if (from < to) row.ranges.push_back({from, to, static_cast<int32_t>(k_begin), static_cast<int32_t>(k_end)});
    };
    see(begin, row.first_image, first, next);
    std::size_t in_a_row = 0;
    for (std::size_t i = 0; i < images.size(); ++i) {
        if (i > 0 && images[i].first != images[i - 1].first + 1) in_a_row = i;
        see(images[i].first, i + 1 < images.size() ? images[i + 1].first : end, row.places[in_a_row].own,
            row.places[i].own + images[i].patches() * tiles.rows());
    }
    return row;
}

void ImageSight::add_tokens(const RowSight* row, int64_t from, int64_t count) {
    const auto at = static_cast<int64_t>(attends.size());
    attends.resize(attends.size() + static_cast<std::size_t>(count), row != nullptr ? 1.0F : 0.0F);
    for (int64_t t = from; t < from + count; ++t) adds.push_back(row != nullptr && t >= row->first_image ? 1.0F : 0.0F);
    if (row == nullptr) return;
    for (const ops::AttentionRange& range : row->ranges) {
        const int64_t begin = std::max<int64_t>(range.q_begin, from),
                      end = std::min<int64_t>(range.q_end, from + count);
        if (begin < end)
            ranges.push_back({static_cast<int32_t>(begin - from + at), static_cast<int32_t>(end - from + at),
                              range.k_begin, range.k_end});
    }
}

int64_t ImageSight::made() const {
    int64_t sum = 0;
    for (const SegmentFeatures& segment : segments) sum += segment.rows;
    return sum;
}

ImageSight sight_of(const spec::VisionSpec& spec, const std::vector<data::Image>& images,
                    const std::vector<int32_t>& segments) {
    ImageSight sight;
    std::size_t next = 0;
    for (std::size_t s = 0; s + 1 < segments.size(); ++s) {
        const int32_t begin = segments[s], end = segments[s + 1];
        const std::size_t first = next;
        while (next < images.size() && images[next].first < end) ++next;
        if (next == first) {
            sight.add_tokens(nullptr, begin, end - begin);
            continue;
        }
        const RowSight row = row_sight(spec, std::span(images).subspan(first, next - first), sight.rows, begin, end);
        sight.add_tokens(&row, begin, end - begin);
        sight.places.insert(sight.places.end(), row.places.begin(), row.places.end());
        sight.segments.push_back({begin, sight.rows, row.rows});
        sight.rows += row.rows;
    }
    UNSLOTH_CHECK(next == images.size(), images.size() - next, " images are after the last segment");
    return sight;
}

void see_tiles(ops::Context& ctx, const spec::VisionSpec& spec, const weights::VisionWeights& w, const VisionBuffers& b,
               const std::vector<data::Image>& images, const std::vector<TilePlace>& places, bool adapted,
               KeptFeatures* kept) {
    const ops::Region region(ctx, "tower");
    const auto copy = [&](int64_t from, int64_t rows, int64_t to) {
        const at::Tensor features = b.features.narrow(1, 0, spec.out_size);
        if (rows > 0) ops::copy_2d(ctx, features.narrow(0, from, rows), features.narrow(0, to, rows));
    };
    for (std::size_t i = 0; i < images.size(); ++i) {
        const int64_t own = own_features(spec, images[i]), padding = spec.tiles->features() - own;
        if (const std::size_t first = first_of(images, i); first < i) {
            copy(places[first].own, own, places[i].own);
            copy(places[first].padding, padding, places[i].padding);
            continue;
        }
        std::vector<at::Tensor> features;
        if (kept != nullptr) {
            features = {b.features.narrow(0, places[i].own, own), b.features.narrow(0, places[i].padding, padding)};
            if (kept->fetch(images[i].content, features)) continue;
        }
        TileSight(ctx, spec, w, b, images[i], static_cast<int64_t>(i), adapted && w.adapted()).pass(places[i]);
        if (kept != nullptr) kept->keep(images[i].content, features);
    }
}

}  // namespace unsloth::model
