#include "unsloth/weights/dora_norms.h"

#include <algorithm>

#include "unsloth/core/error.h"
#include "unsloth/ops/gemm.h"
#include "unsloth/ops/profiler.h"
#include "unsloth/weights/part.h"

namespace unsloth::weights {
namespace {

constexpr const char *base_name = "norms of base rows", *scale_name = "scales of outputs",
                     *inverse_name = "inverse norms of rows", *products_name = "norms' products";

int64_t outputs(const LayerLayout& layout) {
    int64_t sum = 0;
    for (const Group g : layout.all_groups()) sum += layout[g].n;
    return sum;
}

int64_t most_products(const LayerLayout& layout) {
    int64_t most = 0;
    for (const Group g : layout.all_groups()) most = std::max(most, layout[g].r * (layout[g].r + layout[g].n));
    return most;
}

}  // namespace

void DoraNorms::plan(const LayerLayout& layout, int64_t layers, memory::Plan& plan) {
    constexpr int64_t item = sizeof(float);
    for (const char* const name : {base_name, scale_name, inverse_name})
        plan.add("adapters", name, layers * outputs(layout) * item);
    plan.add("adapters", products_name, most_products(layout) * item);
}

DoraNorms::DoraNorms(const LayerLayout& layout, const Adapters& adapters, const memory::Arena& arena,
                     comm::Communicator* slices)
    : layout_(layout), adapters_(adapters), slices_(slices) {
    const auto tensor = [&](const char* name, std::vector<int64_t> sizes) {
        return arena.tensor(arena.plan().find(name), std::move(sizes), at::kFloat);
    };
    const std::vector<int64_t> all{static_cast<int64_t>(adapters.layers().size()), outputs(layout)};
    base_LN = tensor(base_name, all).zero_();
    scale_LN = tensor(scale_name, all).fill_(1);
    inverse_LN = tensor(inverse_name, all).zero_();
    products_ = tensor(products_name, {most_products(layout)});
}

bool DoraNorms::adapts(int layer) const {
    const spec::LayerLora& lora = adapters_.lora(layer);
    return std::any_of(lora.begin(), lora.end(), [](const auto& adapted) { return adapted.second.dora; });
}

DoraNorms::Vectors DoraNorms::of(int layer, Group g) const {
    int64_t begin = 0;
    for (const Group before : layout_.all_groups()) {
        if (before == g) break;
        begin += layout_[before].n;
    }
    const auto part = [&](const at::Tensor& all_LN) { return all_LN.select(0, layer).narrow(0, begin, layout_[g].n); };
    return {part(base_LN), part(scale_LN), part(inverse_LN)};
}

void DoraNorms::measure(ops::Context& ctx, int layer, Group g, const at::Tensor& w_NK) {
    const at::Tensor base_N = of(layer, g).base_N;
    ops::row_square_sums(ctx, w_NK, base_N);
    sum_over_slices(ctx, g, base_N, layer);
}

void DoraNorms::sum_over_slices(ops::Context& ctx, Group g, const at::Tensor& terms, int layer) const {
    if (slices_ == nullptr || !is_cut_by_inputs(g)) return;
    const ops::Region region(ctx, "all-reduce tp");
    slices_->all_reduce(terms, cat("the norms of layers.", layer, " ", name_of(g)));
}

at::Tensor DoraNorms::norms(spec::LinearId id) const {
    const Group g = layout_.group_of(id);
    for (const Slice& slice : layout_[g].slices)
        if (slice.projection == id.projection) return of(id.layer, g).base_N.narrow(0, slice.n_begin, slice.n).sqrt();
    return {};
}

void DoraNorms::update(ops::Context& ctx, int layer, Group g, const at::Tensor& w_NK, const at::Tensor& a_RK,
                       const at::Tensor& b_NR) {
    const int64_t n = w_NK.size(0), r = a_RK.size(0);
    const at::Tensor gram_RR = products_.narrow(0, 0, r * r).view({r, r}),
                     wa_RN = products_.narrow(0, r * r, r * n).view({r, n});
    // Of all the group's projections with each other, so that W is read once; only those with their own A are used.
    ops::gemm(ctx, {.a = a_RK, .b = w_NK, .out = wa_RN, .transpose_b = true, .label = "dora AW"});
    ops::gemm(ctx, {.a = a_RK, .b = a_RK, .out = gram_RR, .transpose_b = true, .label = "dora AA"});
    sum_over_slices(ctx, g, products_.narrow(0, 0, r * (r + n)), layer);
    const Vectors vectors = of(layer, g);
    for (const Slice& slice : layout_[g].slices) {
        const Parameter* const magnitude = adapters_.magnitude({layer, slice.projection});
        if (magnitude == nullptr) continue;
        const auto ranks_of = [&](const at::Tensor& all, int64_t dim) {
            return all.narrow(dim, slice.r_begin, slice.r);
        };
        for (const RowRun& run : row_runs(slice.part)) {
            const auto outputs_of = [&](const at::Tensor& all, int64_t dim) {
                return all.narrow(dim, slice.n_begin + run.own, run.rows);
            };
            ops::dora_norms(ctx, {.base_N = outputs_of(vectors.base_N, 0),
                                  .b_Nr = ranks_of(outputs_of(b_NR, 0), 1),
                                  .wa_rN = ranks_of(outputs_of(wa_RN, 1), 0),
                                  .gram_rr = ranks_of(ranks_of(gram_RR, 0), 1),
                                  .magnitude_N = adapters_.value(*magnitude).narrow(0, run.whole, run.rows),
                                  .scale_N = outputs_of(vectors.scale_N, 0),
                                  .inverse_N = outputs_of(vectors.inverse_N, 0)});
        }
    }
}

ops::OutputScale DoraNorms::scale(int layer, Group g) const {
    const Vectors vectors = of(layer, g);
    return {vectors.scale_N, vectors.inverse_N, {}};
}

}  // namespace unsloth::weights
