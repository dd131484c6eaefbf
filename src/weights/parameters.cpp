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

struct BlockCounts {
    int64_t slots32 = 0, slots8 = 0;
};

/// Of the blocks that begin before element `end`.
BlockCounts count_blocks(const ParameterTable& table, config::Optimizer optimizer, int64_t end) {
    BlockCounts counts;
    for (const Parameter& p : table.parameters())
        (uses_8bit(p, optimizer) ? counts.slots8 : counts.slots32) +=
            std::clamp<int64_t>((end - p.offset) / ops::optimizer_block, 0, p.blocks());
    return counts;
}

/// Sizes and types of the flat buffers, in the order of `names`: the plan and the constructor walk the same list.
struct Flat {
    const char* name;
    int64_t elements;
    at::ScalarType dtype;
    at::Tensor ops::AdamwState::* member;
};

ParameterSlice held_of(const ParameterTable& table, bool trains, const ShardingPolicy& sharding) {
    if (trains && sharding.has_copies()) return table.slice(sharding.share);
    return {0, table.flat_elements()};
}

/// The optimizer's, and the fp32 values that it changes: what may be in host memory.
std::vector<Flat> state_buffers(const ParameterTable& table, config::Optimizer optimizer, bool trains,
                                const ShardingPolicy& sharding) {
    const int64_t block = ops::optimizer_block;
    const ParameterSlice own = table.slice(sharding.share), held = held_of(table, trains, sharding);
    const int64_t values =
        trains && sharding.has_copies() ? held.elements() : table.padded_elements(sharding.share.size);
    const BlockCounts before = count_blocks(table, optimizer, own.begin),
                      after = count_blocks(table, optimizer, own.end);
    const int64_t slots32 = after.slots32 - before.slots32, slots8 = after.slots8 - before.slots8;
    using State = ops::AdamwState;
    if (!trains) return {{"trainable values", values, at::kFloat, &State::params_P}};
    return {{"trainable values", values, at::kFloat, &State::params_P},
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

/// Those that a checkpoint is made of: the first rank writes the result, for which it takes all values that it has.
std::vector<Flat> saved_buffers(const ParameterTable& table, config::Optimizer optimizer,
                                const ShardingPolicy& sharding) {
    using State = ops::AdamwState;
    std::vector<Flat> buffers = state_buffers(table, optimizer, /*trains=*/true, sharding);
    const bool all = sharding.share.rank == 0 && sharding.holds_all();
    buffers.front().elements = all ? table.flat_elements() : table.slice(sharding.share).elements();
    std::erase_if(buffers, [](const Flat& flat) {
        for (const auto member :
             {&State::params_P, &State::m32, &State::v32, &State::m8, &State::v8, &State::absmax_m8, &State::absmax_v8})
            if (flat.member == member) return flat.elements == 0;
        return true;
    });
    return buffers;
}

/// Bytes of a slot: of the largest unit that takes it.
int64_t slot_bytes(const ParameterTable& table, int slot, const std::function<int64_t(ParameterSlice)>& bytes) {
    int64_t most = 0;
    for (int unit = 0; unit < table.units(); ++unit)
        if (table.slot_of(unit) == slot) most = std::max(most, bytes(table.unit(unit)));
    return most;
}

int64_t fp32_bytes(ParameterSlice slice) {
    return slice.elements() * static_cast<int64_t>(sizeof(float));
}

std::string value_slot_name(int slot) {
    return cat("values of a layer, slot ", slot);
}
std::string gradient_slot_name(int slot) {
    return cat("gradients of a layer, slot ", slot);
}

int64_t far_chunks_of(const ParameterTable& table, const ShardingPolicy& sharding) {
    int64_t chunks = 0;
    for (int unit = 0; unit < table.units(); ++unit)
        chunks += Parameters::far_chunks(table.slice(sharding.share).with(table.unit(unit)));
    return chunks;
}

/// fp32 values on the device are copies of themselves.
bool needs_copies(const ShardingPolicy& sharding, const WorkingLayout& working) {
    return sharding.has_copies() && (sharding.on_host() || !working.all_fp32());
}

constexpr const char *gradients_name = "trainable gradients", *copies_name = "working copies",
                     *far_sums_name = "gradients' sums of a layer", *staging_name = "values on their way",
                     *far_squares_name = "gradient norm of a layer";

std::string copy_name(const Flat& flat) {
    return cat("copy of ", flat.name);
}

constexpr const char* norm_scratch_name = "gradient norm scratch";

}  // namespace

void Parameters::plan(const ParameterTable& table, config::Optimizer optimizer, bool trains,
                      const ShardingPolicy& sharding, memory::Plan& device) {
    if (!(trains && sharding.on_host()))
        for (const Flat& flat : state_buffers(table, optimizer, trains, sharding))
            device.add(flat.member == &ops::AdamwState::params_P ? flat.name : optimizer_group, flat.name,
                       flat.elements * static_cast<int64_t>(c10::elementSize(flat.dtype)));
    if (!trains) return;
    const WorkingLayout working(table, sharding.dtype);
    const auto slots = [&](const char* group, const auto& name, const std::function<int64_t(ParameterSlice)>& bytes) {
        for (int slot = 0; slot < ParameterTable::slots; ++slot)
            device.add(group, name(slot), slot_bytes(table, slot, bytes));
    };
    if (sharding.splits_gradients()) {
        slots(gradients_name, gradient_slot_name, fp32_bytes);
        if (!sharding.on_host())
            device.add(gradients_name, gradients_name, fp32_bytes(table.padded_slice(sharding.share)));
    } else {
        device.add(gradients_name, gradients_name,
                   table.padded_elements(sharding.share.size) * static_cast<int64_t>(sizeof(float)));
    }
    if (sharding.splits_values())
        slots(copies_name, value_slot_name, [&](ParameterSlice slice) { return working.bytes(slice); });
    if (needs_copies(sharding, working))
        device.add(copies_name, copies_name,
                   working.bytes(sharding.splits_values() ? table.slice(sharding.share)
                                                          : ParameterSlice{0, table.flat_elements()}));
    if (sharding.on_host() && sharding.host_is_far) {
        int64_t largest = 0;
        for (int unit = 0; unit < table.units(); ++unit) largest = std::max(largest, fp32_bytes(table.unit(unit)));
        device.add(gradients_name, far_sums_name, largest);
        device.add("workspace", far_squares_name,
                   far_chunks_of(table, sharding) * static_cast<int64_t>(sizeof(double)));
    }
    device.add("workspace", norm_scratch_name, ops::gradient_norm_scratch(table.padded_elements(sharding.share.size)));
}

void Parameters::plan_host(const ParameterTable& table, config::Optimizer optimizer, bool trains,
                           const ShardingPolicy& sharding, memory::Plan& host) {
    if (!trains || !sharding.on_host()) return;
    for (const Flat& flat : state_buffers(table, optimizer, trains, sharding))
        host.add(flat.member == &ops::AdamwState::params_P ? flat.name : optimizer_group, flat.name,
                 flat.elements * static_cast<int64_t>(c10::elementSize(flat.dtype)));
    const ParameterSlice own = table.padded_slice(sharding.share);
    host.add(gradients_name, gradients_name, fp32_bytes(own));
    if (sharding.host_is_far)
        host.add("workspace", staging_name, 2 * staged_elements * static_cast<int64_t>(sizeof(float)));
}

Parameters::Parameters(ParameterTable table, config::Optimizer optimizer, bool trains, const ShardingPolicy& sharding,
                       const memory::Arena& device, const memory::Arena* host)
    : table_(std::move(table)),
      sharding_(trains ? sharding : ShardingPolicy{.share = sharding.share}),
      working_(table_, sharding.dtype) {
    const auto cut = [](const memory::Arena& arena, const std::string& name, int64_t elements, at::ScalarType type) {
        return arena.tensor(arena.plan().find(name), {elements}, type).zero_();
    };
    const memory::Arena& of_state = sharding_.on_host() ? *host : device;
    for (const Flat& flat : state_buffers(table_, optimizer, trains, sharding_))
        state_.*flat.member = cut(of_state, flat.name, flat.elements, flat.dtype);
    values_P = state_.params_P;
    if (!trains) return;
    const ParameterSlice own = table_.slice(share()), padded = table_.padded_slice(share());
    norm_scratch =
        cut(device, norm_scratch_name, ops::gradient_norm_scratch(table_.padded_elements(share().size)), at::kByte);
    if (sharding_.splits_gradients()) {
        for (int slot = 0; slot < ParameterTable::slots; ++slot)
            gradient_slots_[static_cast<std::size_t>(slot)] =
                cut(device, gradient_slot_name(slot), slot_bytes(table_, slot, fp32_bytes) / 4, at::kFloat);
        own_gradients_P = cut(of_state, gradients_name, padded.elements(), at::kFloat);
    } else {
        gradients_P = cut(device, gradients_name, table_.padded_elements(share().size), at::kFloat);
        own_gradients_P = gradients_P.narrow(0, padded.begin, padded.elements());
    }
    if (sharding_.splits_values())
        for (int slot = 0; slot < ParameterTable::slots; ++slot) {
            const auto bytes = [&](ParameterSlice slice) { return working_.bytes(slice); };
            value_slots_[static_cast<std::size_t>(slot)] =
                cut(device, value_slot_name(slot), slot_bytes(table_, slot, bytes), at::kByte);
        }
    if (needs_copies(sharding_, working_))
        copies_b = cut(device, copies_name, working_.bytes(copied()), at::kByte);
    else if (sharding_.has_copies())
        copies_b = values_P.view(at::kByte);
    if (sharding_.on_host() && sharding_.host_is_far) {
        staging = cut(*host, staging_name, 2 * staged_elements, at::kFloat);
        const memory::BufferId id = device.plan().find(far_sums_name);
        far_sums = device.tensor(id, {device.plan().entry(id).bytes / 4}, at::kFloat);
        far_squares = cut(device, far_squares_name, far_chunks_of(table_, sharding_), at::kDouble);
    }
    if (!sharding_.has_copies()) state_.params_P = values_P.narrow(0, own.begin, own.elements());
    state_.grads_P = own_gradients_P.narrow(0, 0, own.elements());
    fill_flags(optimizer);
}

void Parameters::fill_flags(config::Optimizer optimizer) {
    const ParameterSlice own = this->own();
    const int64_t first_block = own.begin / ops::optimizer_block, block_total = own.elements() / ops::optimizer_block;
    at::Tensor flags = at::zeros({block_total}, at::kByte), slots = at::zeros({block_total}, at::kInt);
    int32_t next32 = 0, next8 = 0;
    for (const Parameter& p : table_.parameters()) {
        const bool eight = uses_8bit(p, optimizer);
        const auto flag = static_cast<uint8_t>((p.decays ? ops::block_decays : 0) | (eight ? ops::block_8bit : 0) |
                                               p.rate_group() << ops::block_rate_shift);
        const int64_t first = p.offset / ops::optimizer_block - first_block;
        for (int64_t b = std::max<int64_t>(first, 0); b < std::min(first + p.blocks(), block_total); ++b) {
            flags.data_ptr<uint8_t>()[b] = flag;
            slots.data_ptr<int32_t>()[b] = eight ? next8++ : next32++;
        }
    }
    state_.flags_b.copy_(flags);
    state_.slot_b.copy_(slots);
    state_.maps.copy_(ops::dynamic_maps(at::kCPU));
}

ParameterSlice Parameters::held() const {
    return held_of(table_, true, sharding_);
}

at::Tensor to_stored(const Parameter& p, const at::Tensor& values) {
    if (p.experts == 0 || p.kind != Parameter::Kind::lora_b) return values;
    const int64_t parts = p.by_turns ? 2 : 1;
    return values.view({p.experts, parts, p.shape[0] / p.experts / parts, p.shape[1]})
        .permute({2, 1, 3, 0})
        .reshape(p.stored_shape());
}

at::Tensor from_stored(const Parameter& p, const at::Tensor& stored) {
    if (p.experts == 0 || p.kind != Parameter::Kind::lora_b) return stored;
    const int64_t parts = p.by_turns ? 2 : 1;
    return stored.view({p.shape[0] / p.experts / parts, parts, p.shape[1], p.experts})
        .permute({3, 1, 0, 2})
        .reshape(p.shape);
}

void Parameters::assign(const Parameter& p, const at::Tensor& values) const {
    const ParameterSlice part = held().with({p.offset, p.offset + p.elements()});
    if (part.elements() == 0) return;
    values_P.narrow(0, part.begin - held().begin, part.elements())
        .copy_(values.reshape({-1}).narrow(0, part.begin - p.offset, part.elements()));
}

at::Tensor Parameters::value_slot(int unit) const {
    return value_slots_.at(static_cast<std::size_t>(table_.slot_of(unit)))
        .narrow(0, 0, working_.bytes(table_.unit(unit)));
}

at::Tensor Parameters::gradient_slot(int unit) const {
    return gradient_slots_.at(static_cast<std::size_t>(table_.slot_of(unit)))
        .narrow(0, 0, table_.unit(unit).elements());
}

at::Tensor Parameters::working_view(const at::Tensor& bytes, int64_t first_byte, const Parameter& p) const {
    const int64_t begin = working_.byte_of(p.offset) - first_byte;
    const at::ScalarType type = working_.type_of(p);
    return bytes.narrow(0, begin, p.elements() * static_cast<int64_t>(c10::elementSize(type))).view(type).view(p.shape);
}

at::Tensor Parameters::value(const Parameter& p) const {
    if (sharding_.splits_values()) {
        const int unit = table_.unit_of(p);
        return working_view(value_slot(unit), working_.byte_of(table_.unit(unit).begin), p);
    }
    if (sharding_.on_host()) return working_view(copies_b, 0, p);
    return values_P.narrow(0, p.offset, p.elements()).view(p.shape);
}

at::Tensor Parameters::gradient(const Parameter& p) const {
    if (!sharding_.splits_gradients()) return gradients_P.narrow(0, p.offset, p.elements()).view(p.shape);
    const int unit = table_.unit_of(p);
    return gradient_slot(unit).narrow(0, p.offset - table_.unit(unit).begin, p.elements()).view(p.shape);
}

ops::AdamwState Parameters::saved() const {
    ops::AdamwState saved = state_;
    if (share().rank == 0 && holds_all()) saved.params_P = values_P.narrow(0, 0, table_.flat_elements());
    return saved;
}

ParameterSlice Parameters::state_slice(const ParameterTable& table, config::Optimizer optimizer, Share share,
                                       at::Tensor ops::AdamwState::* member) {
    using State = ops::AdamwState;
    const ParameterSlice own = table.slice(share);
    if (member == &State::params_P) return own;
    const BlockCounts before = count_blocks(table, optimizer, own.begin),
                      after = count_blocks(table, optimizer, own.end);
    const int64_t block = ops::optimizer_block;
    if (member == &State::m32 || member == &State::v32) return {before.slots32 * block, after.slots32 * block};
    if (member == &State::m8 || member == &State::v8) return {before.slots8 * block, after.slots8 * block};
    UNSLOTH_CHECK(member == &State::absmax_m8 || member == &State::absmax_v8, "no tensor of the state that is saved");
    return {before.slots8, after.slots8};
}

void Parameters::plan_copies(const ParameterTable& table, config::Optimizer optimizer, const ShardingPolicy& sharding,
                             memory::Plan& host) {
    if (sharding.on_host()) return;
    for (const Flat& flat : saved_buffers(table, optimizer, sharding))
        host.add(copies_group, copy_name(flat), flat.elements * static_cast<int64_t>(c10::elementSize(flat.dtype)));
}

ops::AdamwState Parameters::copies(const ParameterTable& table, config::Optimizer optimizer,
                                   const ShardingPolicy& sharding, const memory::Arena* host) {
    ops::AdamwState copies;
    for (const Flat& flat : saved_buffers(table, optimizer, sharding))
        copies.*flat.member = host->tensor(host->plan().find(copy_name(flat)), {flat.elements}, flat.dtype);
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
        const int64_t length = p.blocks() * ops::optimizer_block;
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

}  // namespace unsloth::weights
