// Legend: P rows of the tower, C its hidden size, D the text model's hidden size, R an adapter's columns. Slots are of
// TowerBackward::inputs: what enters each block, what leaves the last one, and the same of the global blocks.
#include "model/tiles.h"
#include "model/tower_blocks.h"
#include "unsloth/model/tile_tower.h"
#include "unsloth/ops/profiler.h"
#include "unsloth/ops/rows.h"

namespace unsloth::model {
namespace {

/// One image's way back through the tower.
class TileBackward {
  public:
    TileBackward(ops::Context& ctx, const spec::VisionSpec& spec, const weights::VisionWeights& w,
                 const VisionBuffers& b, const weights::Parameters& parameters, int64_t own_tiles, int64_t number)
        : ctx_(ctx),
          spec_(spec),
          tiles_(*spec.tiles),
          w_(w),
          b_(b),
          parameters_(parameters),
          own_tiles_(own_tiles),
          number_(number),
          ranges_(tile_ranges(spec, own_tiles)),
          stacked_(stacked_outputs(spec, b)),
          blocks_(ctx, spec, b, parameters, spec.tiles->tower_rows()) {}

    void pass(const TilePlace& place) {
        stack();
        project(place);
        const at::Tensor& g_PC = blocks_.g();
        g_PC.zero_();
        add_output(0);
        const int64_t first_global = spec_.depth + 1;  // a slot
        for (int64_t i = tiles_.global_depth - 1; i >= 0; --i)
            blocks_.block(w_.global_blocks[static_cast<std::size_t>(i)], slot(first_global + i), ranges_,
                          /*lowest=*/false);
        const at::Tensor dy_PC = matrix_of(b_.backward.dh, tiles_.tower_rows(), spec_.hidden_size);
        ops::copy_2d(ctx_, g_PC, dy_PC);
        g_PC.zero_();
        ops::layer_norm_backward(ctx_, dy_PC, slot(spec_.depth), w_.norm_post.weight, outer_norm_eps, g_PC);
        for (int64_t layer = spec_.depth - 1; layer >= 0; --layer) {
            for (std::size_t i = 0; i < tiles_.chosen.size(); ++i)
                if (tiles_.chosen[i] == layer) add_output(static_cast<int64_t>(i) + 1);
            blocks_.block(w_.blocks[static_cast<std::size_t>(layer)], slot(layer), ranges_, /*lowest=*/layer == 0);
        }
    }

  private:
    at::Tensor slot(int64_t number) const { return tile_slot(spec_, b_, number, number_); }
    at::Tensor part(int64_t number) const { return stacked_.narrow(1, number * spec_.hidden_size, spec_.hidden_size); }

    /// What the projector read.
    void stack() {
        const auto of_slot = [&](int64_t number, int64_t from) {
            ops::copy_2d(ctx_, slot(from).narrow(0, 0, tiles_.features()), part(number));
        };
        of_slot(0, spec_.depth + 1 + tiles_.global_depth);
        for (std::size_t i = 0; i < tiles_.chosen.size(); ++i)
            of_slot(static_cast<int64_t>(i) + 1, tiles_.chosen[i] + 1);
    }

    /// The gradients of its adapter; and that of what it read takes the place of that.
    void project(const TilePlace& place) {
        const weights::VisionLinear& w = w_.projector;
        const weights::VisionAdapter* const adapter = w.adapters.empty() ? nullptr : &w.adapters.front();
        const at::Tensor da_rK =
            adapter ? matrix_of(b_.backward.da, adapter->a->shape[0], stacked_.size(1)).zero_() : at::Tensor();
        for (const TilePiece& piece : tile_pieces(spec_, own_tiles_, place)) {
            const at::Tensor dy_SD = b_.backward.dfeatures.narrow(0, piece.feature, piece.rows),
                             x_SK = stacked_.narrow(0, piece.first, piece.rows);
            const at::Tensor v_SR = adapter ? blocks_.adapter_backward(*adapter, dy_SD, x_SK, da_rK) : at::Tensor();
            ops::gemm(ctx_, {.a = dy_SD, .b = w.values(ctx_), .out = x_SK, .label = "gemm dx tower"});
            if (adapter)
                ops::gemm(ctx_, {.a = v_SR, .b = adapter->a_RK, .out = x_SK, .beta = 1.0, .label = "lora vA tower"});
        }
        if (!adapter) return;
        const auto layers = static_cast<int64_t>(tiles_.chosen.size());
        const weights::ProjectorColumns to = weights::folder_columns(parameters_.gradient(*adapter->a), layers),
                                        from = weights::layer_columns(da_rK, layers);
        to.last_NC.add_(from.last_NC);
        to.chosen_NLC.add_(from.chosen_NLC);
    }

    /// Adds the gradient of an output that is part of the features. Zeros that fill tiles up are none.
    void add_output(int64_t number) { blocks_.g().narrow(0, 0, tiles_.features()).add_(part(number)); }

    ops::Context& ctx_;
    const spec::VisionSpec& spec_;
    const spec::TilesSpec& tiles_;
    const weights::VisionWeights& w_;
    const VisionBuffers& b_;
    const weights::Parameters& parameters_;
    const int64_t own_tiles_, number_;
    const std::vector<ops::AttentionRange> ranges_;
    const at::Tensor stacked_;
    const BlocksBackward blocks_;
};

}  // namespace

void see_tiles_backward(ops::Context& ctx, const spec::VisionSpec& spec, const weights::VisionWeights& w,
                        const VisionBuffers& b, const std::vector<data::Image>& images,
                        const std::vector<TilePlace>& places, const weights::Parameters& parameters) {
    const ops::Region region(ctx, "tower backward");
    const at::Tensor& dfeatures_SD = b.backward.dfeatures;
    for (std::size_t i = 0; i < images.size(); ++i) {  // images of the same pixels have the same features
        const std::size_t first = first_of(images, i);
        if (first == i) continue;
        const std::vector<TilePiece> to = tile_pieces(spec, images[i].patches(), places[first]),
                                     from = tile_pieces(spec, images[i].patches(), places[i]);
        for (std::size_t piece = 0; piece < to.size(); ++piece)
            dfeatures_SD.narrow(0, to[piece].feature, to[piece].rows)
                .add_(dfeatures_SD.narrow(0, from[piece].feature, from[piece].rows));
    }
    for (std::size_t i = 0; i < images.size(); ++i)
        if (first_of(images, i) == i)
            TileBackward(ctx, spec, w, b, parameters, images[i].patches(), static_cast<int64_t>(i)).pass(places[i]);
}

}  // namespace unsloth::model
