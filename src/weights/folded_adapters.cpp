#include "unsloth/weights/folded_adapters.h"

#include <algorithm>
#include <variant>

#include "unsloth/ops/serve_grid.h"

namespace unsloth::weights {
namespace {

constexpr const char *values_name = "serve grid values", *workspace_name = "serve grid workspace";

struct Room {
    int64_t values = 0, workspace = 0;  ///< elements, bytes
};

/// For one projection at a time.
Room room_for(spec::ServeGrid grid, const LayerLayout& layout) {
    Room room;
    for (const MatrixGroup& group : layout.groups)
        for (const Slice& slice : group.slices) {
            room.values = std::max(room.values, slice.n * group.k);
            room.workspace = std::max(room.workspace, ops::grid_workspace(grid, slice.n, group.k, slice.r));
        }
    return room;
}

}  // namespace

void FoldedAdapters::plan(spec::ServeGrid grid, const LayerLayout& layout, memory::Plan& plan) {
    const Room room = room_for(grid, layout);
    plan.add("dequantized layer", values_name, room.values * static_cast<int64_t>(sizeof(float)), memory::always);
    if (room.workspace > 0) plan.add("dequantized layer", workspace_name, room.workspace, memory::always);
}

FoldedAdapters::FoldedAdapters(ops::Context& ctx, spec::ServeGrid grid, const LayerLayout& layout,
                               const Adapters* adapters, const memory::Arena& arena)
    : grid_(grid), adapters_(adapters) {
    const memory::BufferId values = arena.plan().find(values_name);
    values_ =
        arena.tensor(values, {arena.plan().entry(values).bytes / static_cast<int64_t>(sizeof(float))}, at::kFloat);
    const int64_t bytes = room_for(grid, layout).workspace;
    if (bytes == 0) return;
    workspace_ = arena.tensor(arena.plan().find(workspace_name), {bytes}, at::kByte);
    ops::prepare_grid_workspace(ctx, grid, workspace_);
}

void FoldedAdapters::fold(ops::Context& ctx, int layer, const Slice& slice, const StoredWeight& stored,
                          const at::Tensor& out_NK) const {
    ops::GridFold fold{.grid = grid_,
                       .values_NK = values_.narrow(0, 0, out_NK.numel()).view(out_NK.sizes()),
                       .out_NK = out_NK,
                       .workspace = workspace_};
    spec::Quant4View codes;
    if (const auto* coded = std::get_if<ops::Quant4Tensor>(&stored); coded != nullptr && !coded->is_mxfp4()) {
        codes = coded->view();
        fold.codes = &codes;
    } else if (const auto* plain = std::get_if<at::Tensor>(&stored);
               plain != nullptr && plain->device() == ctx.device() && plain->is_contiguous()) {
        fold.w_NK = *plain;
    } else {
        expand(ctx, stored, fold.values_NK);
        fold.w_NK = fold.values_NK;
    }
    const spec::LinearId id = slice.id(layer);
    if (const Parameter* const a = adapters_ == nullptr ? nullptr : adapters_->a(id)) {
        fold.a_rK = adapters_->value(*a);
        fold.b_Nr = adapters_->value(*adapters_->b(id));
        fold.scale = static_cast<float>(adapters_->lora(layer)[slice.projection].scale);
    }
    ops::fold_to_grid(ctx, fold);
}

}  // namespace unsloth::weights
