#include "unsloth/weights/parameters.h"

#include <algorithm>

#include "unsloth/core/error.h"
#include "unsloth/formats/peft.h"

namespace unsloth::weights {
namespace {

constexpr int64_t small_tensor = 4096;  // bitsandbytes keeps smaller ones in 32-bit moments

bool uses_8bit(const Parameter& p, config::Optimizer optimizer) {
    const bool embedding = p.role == spec::TensorRole::embed_tokens;
    return optimizer == config::Optimizer::adamw_8bit && !embedding && p.elements() >= small_tensor;
}

int64_t blocks(const Parameter& p) {
    return (p.elements() + ops::optimizer_block - 1) / ops::optimizer_block;
}

struct BlockCounts {
    int64_t slots32 = 0, slots8 = 0;
};

/// Of the blocks that begin before element `end`.
BlockCounts count_blocks(const ParameterTable& table, config::Optimizer optimizer, int64_t end) {
    BlockCounts counts;
    for (const Parameter& p : table.parameters())
        (uses_8bit(p, optimizer) ? counts.slots8 : counts.slots32) +=
            std::clamp<int64_t>((end - p.offset) / ops::optimizer_block, 0, blocks(p));
    return counts;
}

/// Sizes and types of the flat buffers, in the order of `names`: the plan and the constructor walk the same list.
struct Flat {
    const char* name;
    int64_t elements;
    at::ScalarType dtype;
    at::Tensor ops::AdamwState::* member;
};

std::vector<Flat> flat_buffers(const ParameterTable& table, config::Optimizer optimizer, bool trains, Share share) {
    const int64_t all = table.padded_elements(share.size), block = ops::optimizer_block;
    const ParameterSlice own = table.slice(share);
    const BlockCounts before = count_blocks(table, optimizer, own.begin),
                      behind = count_blocks(table, optimizer, own.end);
    const int64_t slots32 = behind.slots32 - before.slots32, slots8 = behind.slots8 - before.slots8;
    using State = ops::AdamwState;
    if (!trains) return {{"trainable values", all, at::kFloat, &State::params_P}};
    return {{"trainable values", all, at::kFloat, &State::params_P},
            {"trainable gradients", all, at::kFloat, &State::grads_P},
            {"block flags", own.elements() / block, at::kByte, &State::flags_b},
            {"block slots", own.elements() / block, at::kInt, &State::slot_b},
            {"moments m, 32-bit", slots32 * block, at::kFloat, &State::m32},
            {"moments v, 32-bit", slots32 * block, at::kFloat, &State::v32},
            {"moments m, 8-bit", slots8 * block, at::kByte, &State::m8},
            {"moments v, 8-bit", slots8 * block, at::kByte, &State::v8},
            {"block maxima m", slots8, at::kFloat, &State::absmax_m8},
            {"block maxima v", slots8, at::kFloat, &State::absmax_v8},
            {"dynamic maps", 512, at::kFloat, &State::maps}};
}

/// Those that a checkpoint is made of: the first rank writes the result, for which it takes all values.
std::vector<Flat> saved_buffers(const ParameterTable& table, config::Optimizer optimizer, Share share) {
    using State = ops::AdamwState;
    std::vector<Flat> buffers = flat_buffers(table, optimizer, /*trains=*/true, share);
    buffers.front().elements = share.rank == 0 ? table.flat_elements() : table.slice(share).elements();
    std::erase_if(buffers, [](const Flat& flat) {
        for (const auto member :
             {&State::params_P, &State::m32, &State::v32, &State::m8, &State::v8, &State::absmax_m8, &State::absmax_v8})
            if (flat.member == member) return flat.elements == 0;
        return true;
    });
    return buffers;
}

std::string copy_name(const Flat& flat) {
    return cat("copy of ", flat.name);
}

constexpr const char* norm_scratch_name = "gradient norm scratch";

}  // namespace

int64_t Parameter::elements() const {
    int64_t product = 1;
    for (const int64_t size : shape) product *= size;
    return product;
}

Parameter::RateGroup Parameter::rate_group() const {
    if (kind == Kind::lora_b || kind == Kind::magnitude) return lora_b_rate;
    return role == spec::TensorRole::embed_tokens ? embedding_rate : usual_rate;
}

void ParameterTable::add(Parameter parameter) {
    parameter.offset = flat_;
    flat_ += blocks(parameter) * ops::optimizer_block;
    parameters_.push_back(std::move(parameter));
}

ParameterTable ParameterTable::lora(const spec::ModelSpec& spec, const std::vector<spec::LayerLora>& lora,
                                    const std::vector<std::string>& modules_to_save) {
    ParameterTable table;
    for (std::size_t layer = 0; layer < lora.size(); ++layer) {
        const auto index = static_cast<int>(layer);
        const auto add = [&](Parameter::Kind kind) {
            for (int i = 0; i < spec::projection_count; ++i) {
                const auto p = static_cast<spec::Projection>(i);
                const spec::LoraModule& module = lora[layer][static_cast<std::size_t>(i)];
                if (module.r == 0 || (kind == Parameter::Kind::magnitude && !module.dora)) continue;
                const int64_t n = spec.out_features(p);
                Parameter parameter{kind, formats::lora_a_name(index, p), spec::TensorRole::linear, index,
                                    p,    {module.r, spec.in_features(p)}};
                if (kind == Parameter::Kind::lora_b) {
                    parameter.name = formats::lora_b_name(index, p);
                    parameter.shape = {n, module.r};
                } else if (kind == Parameter::Kind::magnitude) {
                    parameter.name = formats::magnitude_name(index, p);
                    parameter.shape = {n};
                }
                table.add(std::move(parameter));
            }
        };
        // A's of a group lie together, so that one product can yield all their gradients.
        add(Parameter::Kind::lora_a);
        add(Parameter::Kind::lora_b);
        add(Parameter::Kind::magnitude);
    }
    for (const std::string& module : modules_to_save) {
        const spec::TensorRole role =
            module == "embed_tokens" ? spec::TensorRole::embed_tokens : spec::TensorRole::lm_head;
        table.add({Parameter::Kind::base,
                   formats::saved_module_name(module),
                   role,
                   -1,
                   spec::Projection::q,
                   {spec.vocab_size, spec.hidden_size}});
    }
    return table;
}

ParameterTable ParameterTable::full(const spec::ModelSpec& spec) {
    ParameterTable table;
    for (const spec::TensorRule& rule : spec::tensor_table(spec))
        table.add({Parameter::Kind::base, rule.hf_name, rule.role, rule.layer, rule.projection, rule.shape, 0,
                   rule.shape.size() == 2});
    return table;
}

ParameterTable ParameterTable::of(const spec::Stage& stage, bool tied) const {
    ParameterTable table;
    for (const Parameter& p : parameters_)
        if (stage.holds(p.role, p.layer, tied)) table.add(p);
    return table;
}

int64_t ParameterTable::trainable_elements() const {
    int64_t sum = 0;
    for (const Parameter& p : parameters_) sum += p.elements();
    return sum;
}

int64_t ParameterTable::end_of(const Parameter& p) const {
    return p.offset + blocks(p) * ops::optimizer_block;
}

const Parameter* ParameterTable::find(spec::TensorRole role, int layer, spec::Projection projection,
                                      Parameter::Kind kind) const {
    for (const Parameter& p : parameters_) {
        const bool same_projection =
            (role != spec::TensorRole::linear && role != spec::TensorRole::bias) || p.projection == projection;
        if (p.role == role && p.layer == layer && p.kind == kind && same_projection) return &p;
    }
    return nullptr;
}

int64_t ParameterTable::padded_elements(int size) const {
    if (size == 1) return flat_;
    const int64_t unit = size * ops::gradient_norm_chunk;
    return (flat_ + unit - 1) / unit * unit;
}

ParameterSlice ParameterTable::padded_slice(Share share) const {
    const int64_t each = padded_elements(share.size) / share.size;
    return {share.rank * each, (share.rank + 1) * each};
}

ParameterSlice ParameterTable::slice(Share share) const {
    const ParameterSlice padded = padded_slice(share);
    return {std::min(padded.begin, flat_), std::min(padded.end, flat_)};
}

void Parameters::plan(const ParameterTable& table, config::Optimizer optimizer, bool trains, Share share,
                      memory::Plan& plan) {
    for (const Flat& flat : flat_buffers(table, optimizer, trains, share)) {
        const bool state = flat.member != &ops::AdamwState::params_P && flat.member != &ops::AdamwState::grads_P;
        plan.add(state ? optimizer_group : flat.name, flat.name,
                 flat.elements * static_cast<int64_t>(c10::elementSize(flat.dtype)));
    }
    if (trains) plan.add("workspace", norm_scratch_name, ops::gradient_norm_scratch(table.padded_elements(share.size)));
}

Parameters::Parameters(ParameterTable table, config::Optimizer optimizer, bool trains, Share share,
                       const memory::Arena& arena)
    : table_(std::move(table)), share_(share) {
    for (const Flat& flat : flat_buffers(table_, optimizer, trains, share)) {
        state_.*flat.member = arena.tensor(arena.plan().find(flat.name), {flat.elements}, flat.dtype);
        (state_.*flat.member).zero_();
    }
    values_P = state_.params_P;
    gradients_P = state_.grads_P;
    if (!trains) return;
    norm_scratch = arena.tensor(arena.plan().find(norm_scratch_name),
                                {ops::gradient_norm_scratch(table_.padded_elements(share.size))}, at::kByte);
    const ParameterSlice own = table_.slice(share);
    state_.params_P = values_P.narrow(0, own.begin, own.elements());
    state_.grads_P = gradients_P.narrow(0, own.begin, own.elements());
    const int64_t first_block = own.begin / ops::optimizer_block, block_total = own.elements() / ops::optimizer_block;
    at::Tensor flags = at::zeros({block_total}, at::kByte), slots = at::zeros({block_total}, at::kInt);
    int32_t next32 = 0, next8 = 0;
    for (const Parameter& p : table_.parameters()) {
        const bool eight = uses_8bit(p, optimizer);
        const auto flag = static_cast<uint8_t>((p.decays ? ops::block_decays : 0) | (eight ? ops::block_8bit : 0) |
                                               p.rate_group() << ops::block_rate_shift);
        const int64_t first = p.offset / ops::optimizer_block - first_block;
        for (int64_t b = std::max<int64_t>(first, 0); b < std::min(first + blocks(p), block_total); ++b) {
            flags.data_ptr<uint8_t>()[b] = flag;
            slots.data_ptr<int32_t>()[b] = eight ? next8++ : next32++;
        }
    }
    state_.flags_b.copy_(flags);
    state_.slot_b.copy_(slots);
    state_.maps.copy_(ops::dynamic_maps(at::kCPU));
}

ops::AdamwState Parameters::saved() const {
    ops::AdamwState saved = state_;
    if (share_.rank == 0) saved.params_P = values_P.narrow(0, 0, table_.flat_elements());
    return saved;
}

ParameterSlice Parameters::state_slice(const ParameterTable& table, config::Optimizer optimizer, Share share,
                                       at::Tensor ops::AdamwState::* member) {
    using State = ops::AdamwState;
    const ParameterSlice own = table.slice(share);
    if (member == &State::params_P) return own;
    const BlockCounts before = count_blocks(table, optimizer, own.begin),
                      behind = count_blocks(table, optimizer, own.end);
    const int64_t block = ops::optimizer_block;
    if (member == &State::m32 || member == &State::v32) return {before.slots32 * block, behind.slots32 * block};
    if (member == &State::m8 || member == &State::v8) return {before.slots8 * block, behind.slots8 * block};
    UNSLOTH_CHECK(member == &State::absmax_m8 || member == &State::absmax_v8, "no tensor of the state that is saved");
    return {before.slots8, behind.slots8};
}

void Parameters::plan_copies(const ParameterTable& table, config::Optimizer optimizer, Share share,
                             memory::Plan& host) {
    for (const Flat& flat : saved_buffers(table, optimizer, share))
        host.add(copies_group, copy_name(flat), flat.elements * static_cast<int64_t>(c10::elementSize(flat.dtype)));
}

ops::AdamwState Parameters::copies(const ParameterTable& table, config::Optimizer optimizer, Share share,
                                   const memory::Arena& host) {
    ops::AdamwState copies;
    for (const Flat& flat : saved_buffers(table, optimizer, share))
        copies.*flat.member = host.tensor(host.plan().find(copy_name(flat)), {flat.elements}, flat.dtype);
    return copies;
}

std::vector<CommonStretch> Parameters::common(const ParameterTable& all, const ParameterTable& own,
                                              config::Optimizer optimizer, at::Tensor ops::AdamwState::* member) {
    using State = ops::AdamwState;
    // The state's slices begin and end with blocks, and so do parameters.
    const bool values = member == &State::params_P || member == &State::grads_P;
    const auto place = [&](const ParameterTable& table, int64_t element) {
        const BlockCounts before = count_blocks(table, optimizer, element);
        const int64_t block = ops::optimizer_block;
        return values                                           ? element
               : member == &State::m32 || member == &State::v32 ? before.slots32 * block
               : member == &State::m8 || member == &State::v8   ? before.slots8 * block
                                                                : before.slots8;
    };
    std::vector<CommonStretch> stretches;
    auto there = all.parameters().begin();
    for (const Parameter& p : own.parameters()) {  // in the same order
        there = std::find_if(there, all.parameters().end(), [&](const Parameter& q) { return q.name == p.name; });
        UNSLOTH_CHECK(there != all.parameters().end(), p.name, " is not among all parameters");
        const int64_t length = blocks(p) * ops::optimizer_block;
        const CommonStretch next{place(all, there->offset), place(own, p.offset),
                                 place(own, p.offset + length) - place(own, p.offset)};
        if (next.elements == 0) continue;
        if (!stretches.empty()) {
            CommonStretch& last = stretches.back();
            if (last.all + last.elements == next.all && last.own + last.elements == next.own) {
                last.elements += next.elements;
                continue;
            }
        }
        stretches.push_back(next);
    }
    return stretches;
}

ops::AdamwState Parameters::saved_shapes(const ParameterTable& table, config::Optimizer optimizer) {
    ops::AdamwState shapes;
    for (const Flat& flat : saved_buffers(table, optimizer, {}))
        shapes.*flat.member = at::empty({flat.elements}, at::TensorOptions(flat.dtype).device(at::kMeta));
    return shapes;
}

at::Tensor Parameters::view(const at::Tensor& flat, const Parameter& p) {
    return flat.narrow(0, p.offset, p.elements()).view(p.shape);
}

}  // namespace unsloth::weights
