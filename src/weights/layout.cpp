#include "unsloth/weights/layout.h"

#include <algorithm>
#include <utility>

#include "unsloth/core/error.h"

namespace unsloth::weights {
namespace {

constexpr int64_t rank_padding = 8;  // 16 bytes of bf16: rows of the wide buffers stay aligned for vector access

int64_t padded_rank(const std::vector<spec::LayerLora>& lora, spec::Projection p) {
    int64_t r = 0;
    for (const spec::LayerLora& layer : lora) r = std::max(r, layer[p].r);
    return (r + rank_padding - 1) / rank_padding * rank_padding;
}

}  // namespace

Group group_of(spec::Projection p) {
    switch (p) {
        case spec::Projection::q:
        case spec::Projection::k:
        case spec::Projection::v:
        case spec::Projection::qkv:
            return Group::qkv;
        case spec::Projection::o:
            return Group::o;
        case spec::Projection::gate:
        case spec::Projection::up:
        case spec::Projection::gate_up:
            return Group::gate_up;
        case spec::Projection::experts_gate_up:
            return Group::experts_gate_up;
        case spec::Projection::experts_down:
            return Group::experts_down;
        case spec::Projection::delta_qkv:
        case spec::Projection::delta_z:
        case spec::Projection::delta_b:
        case spec::Projection::delta_a:
            return Group::delta_in;
        case spec::Projection::delta_out:
            return Group::delta_out;
        case spec::Projection::down:
            break;
    }
    return Group::down;
}

namespace {

Group crossing_group(spec::Projection p) {
    return p == spec::Projection::q ? Group::cross_q : Group::cross_kv;
}

}  // namespace

Group LayerLayout::group_of(const spec::LinearId& id) const {
    const Group g = weights::group_of(id);
    return g == Group::qkv && has_crossing(id.layer) ? crossing_group(id.projection) : g;
}

Group group_of(const spec::LinearId& id) {
    const Group g = group_of(id.projection);
    if (id.expert < 0) return g;
    return g == Group::down ? Group::experts_down : Group::experts_gate_up;
}

LayerLayout make_layout(const spec::ModelSpec& spec, const std::vector<spec::LayerLora>& lora, spec::TensorRank tp,
                        spec::Stage stage) {
    LayerLayout layout;
    layout.tp = tp;
    layout.stage = std::move(stage);
    for (const spec::LayerLora& layer : lora)
        layout.dora = layout.dora ||
                      std::any_of(layer.begin(), layer.end(), [](const auto& adapted) { return adapted.second.dora; });
    const auto add_to = [&](Group g, const spec::LinearId& id) {
        auto there = std::ranges::find(layout.groups, g, &MatrixGroup::group);
        if (there == layout.groups.end()) there = layout.groups.insert(there, MatrixGroup{g});
        MatrixGroup& group = *there;
        const int64_t rank = id.expert < 0 ? padded_rank(lora, id.projection) : 0;
        const spec::MatrixSlice part = spec::slice_of(spec, id, tp);
        group.slices.push_back({id.projection, group.n, part.row_count(), group.r, rank, part, id.expert});
        group.n += part.row_count();
        group.k = part.columns.size;
        group.r += rank;
    };
    const auto add = [&](const spec::LinearId& id) { add_to(group_of(id), id); };
    for (const spec::Projection p : spec.linears) add({-1, p});
    if (spec.has_cross_layers()) {
        for (const spec::LayerSpec& layer : spec.layers) layout.crosses.push_back(layer.crosses);
        for (const spec::Projection p : {spec::Projection::q, spec::Projection::k, spec::Projection::v})
            add_to(crossing_group(p), {-1, p});
    }
    if (spec.delta)
        for (const spec::LayerSpec& layer : spec.layers) layout.deltas.push_back(layer.delta);
    if (!spec.experts) return layout;
    for (const spec::LayerSpec& layer : spec.layers) layout.has_experts.push_back(layer.experts);
    for (int expert = 0; expert < static_cast<int>(spec.experts->count); ++expert)
        for (const spec::Projection p : {spec::Projection::gate, spec::Projection::up, spec::Projection::down})
            add({-1, p, expert});
    for (MatrixGroup& group : layout.groups) {
        if (!is_of_experts(group.group)) continue;
        group.experts = spec.experts->count;
        for (const spec::LayerLora& layer : lora) group.r = std::max(group.r, layer[adapted_of(group.group)].r);
    }
    return layout;
}

const MatrixGroup& LayerLayout::operator[](Group g) const {
    const auto found = std::ranges::find(groups, g, &MatrixGroup::group);
    UNSLOTH_CHECK(found != groups.end(), "no group ", name_of(g));
    return *found;
}

int64_t LayerLayout::elements() const {
    int64_t sum = 0;
    for (const MatrixGroup& group : groups) sum += group.elements();
    return sum;
}

int64_t LayerLayout::widest_rank() const {
    int64_t widest = 0;
    for (const MatrixGroup& group : groups) widest = std::max(widest, group.r);
    return widest;
}

}  // namespace unsloth::weights
