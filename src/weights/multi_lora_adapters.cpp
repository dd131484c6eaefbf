#include "unsloth/weights/multi_lora_adapters.h"

#include <algorithm>

#include "unsloth/core/error.h"
#include "unsloth/spec/convert.h"

namespace unsloth::weights {
namespace {

std::string owners_name(Group g) {
    return cat("owners of columns ", name_of(g));
}

/// fp32, with s in the values of B.
at::Tensor values_of(const formats::Adapter& adapter, const Parameter& p, const spec::LoraModule& module) {
    const bool is_a = p.kind == Parameter::Kind::lora_a;
    const formats::TensorView& view = is_a ? adapter.a(p.id) : adapter.b(p.id);
    const at::Tensor own = at::empty(view.shape, at::kFloat);
    spec::convert_to_f32(view.dtype, view.data.data(), own.numel(), own.data_ptr<float>());
    if (!is_a) own.mul_(module.scale);
    return own;
}

}  // namespace

formats::Adapter read_for_batches(const NamedAdapter& named, const spec::ModelSpec& model) {
    formats::Adapter adapter = formats::read_adapter(named.folder, model);
    const spec::LoraSpec& lora = adapter.config.lora;
    const char* const what = lora.use_dora                     ? "use_dora"
                             : !lora.modules_to_save.empty()   ? "modules_to_save"
                             : !lora.target_parameters.empty() ? "target_parameters"
                                                               : nullptr;
    if (what != nullptr)
        throw Error(
            "adapter.not-together",
            cat("adapter ", named.name, " (", named.folder, ") has ", what, ", and cannot answer beside others"),
            "Give it alone, with --model.adapter_name_or_path, or merge it.");
    adapter.refuse_stand_ins("and cannot answer beside others",
                             "Give it alone, with --model.adapter_name_or_path, or merge it.");
    return adapter;
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
        const int64_t columns = p.kind == Parameter::Kind::lora_a ? 0 : 1;
        const at::Tensor there = parameters.value(p).narrow(columns, slot * slots.rank, slots.rank);
        there.zero_();
        if (adapter == nullptr) continue;
        const spec::LoraModule& module = adapter->layers[static_cast<std::size_t>(p.id.layer)][p.id.projection];
        if (module.r > 0) there.narrow(columns, 0, module.r).copy_(values_of(*adapter, p, module));
    }
}

MultiLoraAdapters::MultiLoraAdapters(const AdapterSlots& slots, const spec::ModelSpec& model) {
    auto& ranks = ranks_.emplace_back();
    spec::LayerLora all{};
    for (const spec::Projection p : model.linears) {
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
        for (const spec::Projection p : model.linears) {
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
    const bool is_a = p.kind == Parameter::Kind::lora_a;
    int64_t first = 0;
    for (std::size_t i = 0; i < adapters_.size(); ++i) {
        const spec::LoraModule& module = adapters_[i].layers[static_cast<std::size_t>(p.id.layer)][p.id.projection];
        if (module.r > 0) all.narrow(is_a ? 0 : 1, first, module.r).copy_(values_of(adapters_[i], p, module));
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
        for (const Slice& slice : layout[g].slices) {
            if (slice.r == 0) continue;
            int64_t first = slice.r_begin;
            for (std::size_t i = 0; i < ranks_.size(); ++i) {
                const int64_t r = ranks_[i].at(slice.projection);
                columns.narrow(0, first, r).fill_(static_cast<int64_t>(i));
                first += r;
            }
        }
        at::Tensor& there = owners[g];
        there = arena.tensor(arena.plan().find(owners_name(g)), {layout[g].r}, at::kInt);
        there.copy_(columns);
    }
    return owners;
}

}  // namespace unsloth::weights
