#include "unsloth/weights/adapter_tails.h"

#include <algorithm>

#include "unsloth/weights/part.h"

namespace unsloth::weights {
namespace {

/// A block of a margin without its tensors.
struct Shape {
    enum class Part { a, a_transposed, b } part;
    int layer;
    Group group;
    const Slice* slice;  ///< nullptr: all experts of the group
    int64_t first, r;    ///< of the slice's reserved rows (A) or columns (B)
    bool used;           ///< otherwise zeros
    int expert = -1;     ///< whose rows of B; -1: all experts'
    RowRun rows{};       ///< of it, or of the slice's B
    spec::LinearId id() const { return slice == nullptr ? spec::LinearId{layer, adapted_of(group)} : slice->id(layer); }
    int64_t elements(const MatrixGroup& layout) const {
        if (expert >= 0) return r * rows.rows;
        if (slice == nullptr) return r * (part == Part::b ? layout.n : layout.experts * layout.k);
        return r * (part == Part::b ? rows.rows : layout.k);
    }
};

/// Of the adapter of a layer's experts. B of experts whose rows are cut is a block for each run of each one's.
void add_experts(const LayerLayout& layout, int layer, Group g, int64_t r, std::vector<Shape>& shapes) {
    if (r == 0) return;
    shapes.push_back({Shape::Part::a, layer, g, nullptr, 0, r, true});
    const std::vector<RowRun> runs = rows_of_expert(layout, g);
    if (layout.tp.alone() || is_cut_by_inputs(g)) {
        shapes.push_back({Shape::Part::b, layer, g, nullptr, 0, r, true});
        return;
    }
    for (int expert = 0; expert < static_cast<int>(layout[g].experts); ++expert)
        for (const RowRun& rows : runs) shapes.push_back({Shape::Part::b, layer, g, nullptr, 0, r, true, expert, rows});
}

/// Every block, layer by layer: the plan and the constructor walk the same list.
std::vector<Shape> shapes_of(const LayerLayout& layout, const std::vector<spec::LayerLora>& lora, bool transposed) {
    std::vector<Shape> shapes;
    for (const int layer : layout.stage.layers(static_cast<int64_t>(lora.size())))
        for (const Group g : layout.groups_of(layer)) {
            if (is_of_experts(g)) {
                add_experts(layout, layer, g, lora[static_cast<std::size_t>(layer)][adapted_of(g)].r, shapes);
                continue;
            }
            for (const Slice& slice : layout[g].slices) {
                if (slice.r == 0) continue;
                const int64_t r = lora[static_cast<std::size_t>(layer)][slice.projection].r;
                const auto add = [&](Shape::Part part, const RowRun& rows) {
                    if (r > 0) shapes.push_back({part, layer, g, &slice, 0, r, true, -1, rows});
                    if (r < slice.r) shapes.push_back({part, layer, g, &slice, r, slice.r - r, false, -1, rows});
                };
                add(Shape::Part::a, {});
                if (transposed) add(Shape::Part::a_transposed, {});
                for (const RowRun& rows : row_runs(slice.part)) add(Shape::Part::b, rows);
            }
        }
    return shapes;
}

std::vector<int64_t> elements_of(const LayerLayout& layout, const std::vector<Shape>& shapes) {
    std::vector<int64_t> elements;
    for (const Shape& shape : shapes) elements.push_back(shape.elements(layout[shape.group]));
    return elements;
}

/// Rows of one expert among all of them.
at::Tensor rows_of_one(const at::Tensor& all, int64_t experts, int expert, int64_t first, int64_t rows) {
    return all.narrow(0, expert * (all.size(0) / experts) + first, rows);
}

at::Tensor place(const Shape& shape, const GroupMargins& margins, int64_t experts) {
    if (shape.expert >= 0)
        return rows_of_one(margins.b_NR, experts, shape.expert, shape.rows.own, shape.rows.rows).narrow(1, 0, shape.r);
    if (shape.slice == nullptr)
        return shape.part == Shape::Part::b ? margins.b_NR.narrow(1, 0, shape.r)
                                            : margins.a_RK.narrow(0, 0, experts * shape.r);
    const int64_t first = shape.slice->r_begin + shape.first;
    switch (shape.part) {
        case Shape::Part::a:
            return margins.a_RK.narrow(0, first, shape.r);
        case Shape::Part::a_transposed:
            return margins.a_KR.narrow(1, first, shape.r);
        case Shape::Part::b:
            return margins.b_NR.narrow(0, shape.slice->n_begin + shape.rows.own, shape.rows.rows)
                .narrow(1, first, shape.r);
    }
    return {};
}

ops::MultiTensorCopy make_table(ops::Context& ctx, const Adapters& adapters, const LayerLayout& layout,
                                const std::vector<LayerMargins>& margins, const memory::Arena& arena,
                                const char* table) {
    const bool transposed = std::any_of(margins.begin(), margins.end(), [](const LayerMargins& layer) {
        return std::ranges::any_of(layer, [](const auto& group) { return group.second.a_KR.defined(); });
    });
    std::vector<ops::FillBlock> blocks;
    std::vector<int64_t> runs;
    for (const Shape& shape : shapes_of(layout, adapters.layers(), transposed)) {
        while (static_cast<int>(runs.size()) <= shape.layer) runs.push_back(static_cast<int64_t>(blocks.size()));
        const GroupMargins& group = margins.at(static_cast<std::size_t>(shape.layer)).at(shape.group);
        ops::FillBlock block{.out = place(shape, group, layout[shape.group].experts),
                             .transposed = shape.part == Shape::Part::a_transposed};
        const spec::LinearId id = shape.id();
        const MatrixGroup& of = layout[shape.group];
        const auto own = [&](const at::Tensor& value, bool is_b) {
            if (shape.expert >= 0)
                return rows_of_one(value, of.experts, shape.expert, shape.rows.whole, shape.rows.rows);
            if (shape.slice != nullptr && is_b) return value.narrow(0, shape.rows.whole, shape.rows.rows);
            if (is_b) return value;
            return columns_of(value, (shape.slice == nullptr ? of.slices.front() : *shape.slice).part);
        };
        if (shape.used && shape.part == Shape::Part::b) {
            block.source = own(adapters.value(*adapters.b(id)), true);
            block.scale = adapters.lora(id.layer)[id.projection].scale;
        } else if (shape.used) {
            block.source = own(adapters.value(*adapters.a(id)), false);
        }
        blocks.push_back(std::move(block));
    }
    while (runs.size() < adapters.layers().size()) runs.push_back(static_cast<int64_t>(blocks.size()));
    const memory::BufferId id = arena.plan().find(table);
    return ops::MultiTensorCopy(ctx, std::move(blocks), std::move(runs),
                                arena.tensor(id, {arena.plan().entry(id).bytes}, at::kByte));
}

}  // namespace

Adapters::Adapters(const Parameters& parameters, const std::vector<spec::LayerLora>& lora)
    : parameters_(parameters), lora_(lora) {
    for (const Parameter& p : parameters.table().parameters()) {
        if (p.kind == Parameter::Kind::base || p.of_tower) continue;
        Trained& of = trained_[p.id];
        (p.kind == Parameter::Kind::lora_a ? of.a : p.kind == Parameter::Kind::lora_b ? of.b : of.magnitude) = &p;
    }
}

const Adapters::Trained& Adapters::of(spec::LinearId id) const {
    static constexpr Trained none;
    const auto found = trained_.find(id);
    return found == trained_.end() ? none : found->second;
}

void AdapterMargins::plan(const LayerLayout& layout, const std::vector<spec::LayerLora>& lora, at::Device device,
                          bool transposed, memory::Plan& plan, const char* table) {
    plan.add("adapters", table,
             ops::MultiTensorCopy::bytes(device, elements_of(layout, shapes_of(layout, lora, transposed))));
}

AdapterMargins::AdapterMargins(ops::Context& ctx, const Adapters& adapters, const LayerLayout& layout,
                               const std::vector<LayerMargins>& margins, const memory::Arena& arena, const char* table)
    : adapters_(&adapters), table_(make_table(ctx, adapters, layout, margins, arena, table)) {}

}  // namespace unsloth::weights
