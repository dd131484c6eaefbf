#include "unsloth/weights/folded_adapters.h"

#include <algorithm>
#include <variant>

#include "unsloth/ops/serve_grid.h"

namespace unsloth::weights {
namespace {

constexpr const char *values_name = "serve grid values", *workspace_name = "serve grid workspace";

int64_t largest_projection(const LayerLayout& layout) {
    int64_t elements = 0;
    for (const MatrixGroup& group : layout.groups)
        for (const Slice& slice : group.slices) elements = std::max(elements, slice.n * group.k);
    return elements;
}

}  // namespace

void FoldedAdapters::plan(spec::ServeGrid grid, const LayerLayout& layout, memory::Plan& plan) {
    const int64_t elements = largest_projection(layout);
    plan.add("dequantized layer", values_name, elements * static_cast<int64_t>(sizeof(float)), memory::always);
    if (const int64_t bytes = ops::grid_workspace(grid, elements); bytes > 0)
        plan.add("dequantized layer", workspace_name, bytes, memory::always);
}

FoldedAdapters::FoldedAdapters(ops::Context& ctx, spec::ServeGrid grid, const Adapters* adapters,
                               const memory::Arena& arena)
    : grid_(grid), adapters_(adapters) {
    const memory::BufferId values = arena.plan().find(values_name);
    values_ =
        arena.tensor(values, {arena.plan().entry(values).bytes / static_cast<int64_t>(sizeof(float))}, at::kFloat);
    if (ops::grid_workspace(grid, 1) == 0) return;
    const memory::BufferId workspace = arena.plan().find(workspace_name);
    workspace_ = arena.tensor(workspace, {arena.plan().entry(workspace).bytes}, at::kByte);
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
