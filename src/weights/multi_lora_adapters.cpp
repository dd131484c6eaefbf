#include "unsloth/weights/multi_lora_adapters.h"

#include <algorithm>

#include "unsloth/core/error.h"
#include "unsloth/spec/convert.h"

namespace unsloth::weights {
namespace {

std::string owners_name(Group g) {
    return cat("owners of columns ", name_of(g));
}

/// Puts an adapter's values, with s in those of B, at its ranks from `first` on in those of all, of the parameter's
/// shape: of experts in each one's part.
void put_values(const formats::Adapter& adapter, const Parameter& p, const at::Tensor& all, int64_t first) {
    const spec::LoraModule& module = adapter.layers[static_cast<std::size_t>(p.id.layer)][p.id.projection];
    if (module.r == 0) return;
    const bool is_a = p.kind == Parameter::Kind::lora_a;
    const formats::TensorView& view = is_a ? adapter.a(p.id) : adapter.b(p.id);
    at::Tensor own = at::empty(view.shape, at::kFloat);
    spec::convert_to_f32(view.dtype, view.data.data(), own.numel(), own.data_ptr<float>());
    if (!is_a) own.mul_(module.scale);
    const int64_t parts = std::max<int64_t>(1, p.experts);
    if (!is_a && p.experts > 0)
        own = own.view({own.size(0), module.r, parts}).permute({2, 0, 1});  // as from_stored()
    else
        own = own.view({parts, own.size(0) / parts, own.size(1)});
    all.view({parts, all.size(0) / parts, all.size(1)}).narrow(is_a ? 1 : 2, first, module.r).copy_(own);
}

/// What of a model may have an adapter, in any layer; of experts where `experts` asks for them.
std::vector<spec::Projection> adaptable(const spec::ModelSpec& model, bool experts) {
    std::vector<spec::Projection> all = model.linears;
    std::erase_if(all, spec::has_no_adapter);
    if (experts && model.experts)
        all.insert(all.end(), {spec::Projection::experts_gate_up, spec::Projection::experts_down});
    return all;
}

}  // namespace

formats::Adapter read_for_batches(const NamedAdapter& named, const spec::ModelSpec& model) {
    formats::Adapter adapter = formats::read_adapter(named.folder, model);
    const spec::LoraSpec& lora = adapter.config.lora;
    const char* const what = lora.use_dora                              ? "use_dora"
                             : !lora.modules_to_save.empty()            ? "modules_to_save"
                             : lora.serve_grid != spec::ServeGrid::none ? "serve_grid"
                             : !adapter.tower.empty()                   ? "adapters in the vision tower"
                                                                        : nullptr;
    if (what != nullptr)
        throw Error(
            "adapter.not-together",
            cat("adapter ", named.name, " (", named.folder, ") has ", what, ", and cannot answer together with others"),
            "Give it alone, with --model.adapter_name_or_path, or merge it.");
    adapter.refuse_stand_ins("and cannot answer together with others",
                             "Give it alone, with --model.adapter_name_or_path, or merge it.");
    return adapter;
}

bool adapts_experts(const formats::Adapter& adapter) {
    return !adapter.config.lora.target_parameters.empty();
}

int64_t largest_rank(const formats::Adapter& adapter) {
    int64_t largest = 0;
    for (const spec::LayerLora& layer : adapter.layers)
        for (const auto& [projection, module] : layer) largest = std::max(largest, module.r);
    return largest;
}

void write_slot(const Parameters& parameters, const AdapterSlots& slots, int64_t slot,
                const formats::Adapter* adapter) {
    for (const Parameter& p : parameters.table().parameters()) {
        const at::Tensor all = parameters.value(p);
        const int64_t parts = std::max<int64_t>(1, p.experts), first = slot * slots.rank;
        all.view({parts, all.size(0) / parts, all.size(1)})
            .narrow(p.kind == Parameter::Kind::lora_a ? 1 : 2, first, slots.rank)
            .zero_();
        if (adapter != nullptr) put_values(*adapter, p, all, first);
    }
}

MultiLoraAdapters::MultiLoraAdapters(const AdapterSlots& slots, const spec::ModelSpec& model) {
    auto& ranks = ranks_.emplace_back();
    spec::LayerLora all{};
    for (const spec::Projection p : adaptable(model, slots.experts)) {
        ranks[p] = slots.rank;
        spec::LoraModule& module = all.add(p);
        module.r = slots.count * slots.rank;
        module.scale = 1;
    }
    ranks_.assign(static_cast<std::size_t>(slots.count), std::map(ranks));
    layers_.assign(static_cast<std::size_t>(model.num_layers), all);
}

MultiLoraAdapters::MultiLoraAdapters(const std::vector<NamedAdapter>& adapters, const spec::ModelSpec& model) {
    spec::LayerLora all{};
    for (const NamedAdapter& named : adapters) {
        const formats::Adapter& adapter = adapters_.emplace_back(read_for_batches(named, model));
        auto& ranks = ranks_.emplace_back();
        for (const spec::Projection p : adaptable(model, true)) {
            for (const spec::LayerLora& layer : adapter.layers) ranks[p] = std::max(ranks[p], layer[p].r);
            if (ranks[p] == 0) continue;
            spec::LoraModule& module = all.add(p);
            module.r += ranks[p];
            module.scale = 1;
        }
    }
    // Columns are the same adapter's in each layer, so that a pass has one list of owners.
    layers_.assign(static_cast<std::size_t>(model.num_layers), all);
}

at::Tensor MultiLoraAdapters::values(const Parameter& p) const {
    const at::Tensor all = at::zeros(p.shape, at::kFloat);
    int64_t first = 0;
    for (std::size_t i = 0; i < adapters_.size(); ++i) {
        put_values(adapters_[i], p, all, first);
        first += ranks_[i].at(p.id.projection);
    }
    return all;
}

void MultiLoraAdapters::plan(const LayerLayout& layout, memory::Plan& plan) const {
    for (const Group g : layout.all_groups())
        plan.add("adapters", owners_name(g), layout[g].r * static_cast<int64_t>(sizeof(int32_t)));
}

ByGroup<at::Tensor> MultiLoraAdapters::owners(const LayerLayout& layout, const memory::Arena& arena) const {
    ByGroup<at::Tensor> owners;
    for (const Group g : layout.all_groups()) {
        const at::Tensor columns = at::full({layout[g].r}, -2, at::kInt);
        const auto own = [&](spec::Projection p, int64_t first) {
            for (std::size_t i = 0; i < ranks_.size(); ++i) {
                const int64_t r = ranks_[i].at(p);
                columns.narrow(0, first, r).fill_(static_cast<int64_t>(i));
                first += r;
            }
        };
        if (is_of_experts(g) && layout[g].r > 0) own(adapted_of(g), 0);
        for (const Slice& slice : layout[g].slices)
            if (slice.r > 0) own(slice.projection, slice.r_begin);
        at::Tensor& there = owners[g];
        there = arena.tensor(arena.plan().find(owners_name(g)), {layout[g].r}, at::kInt);
        there.copy_(columns);
    }
    return owners;
}

}  // namespace unsloth::weights
