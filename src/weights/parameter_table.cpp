#include "unsloth/weights/parameter_table.h"

#include <utility>

#include "unsloth/core/error.h"
#include "unsloth/formats/peft.h"
#include "unsloth/ops/optimizer.h"

namespace unsloth::weights {

int64_t Parameter::elements() const {
    int64_t product = 1;
    for (const int64_t size : shape) product *= size;
    return product;
}

std::vector<int64_t> Parameter::stored_shape() const {
    if (experts == 0 || kind != Kind::lora_b) return shape;
    return {shape[0] / experts, shape[1] * experts};
}

int64_t Parameter::blocks() const {
    return (elements() + ops::optimizer_block - 1) / ops::optimizer_block;
}

Parameter::RateGroup Parameter::rate_group() const {
    if (kind == Kind::lora_b || kind == Kind::magnitude) return lora_b_rate;
    return role == spec::TensorRole::embed_tokens ? embedding_rate : usual_rate;
}

void ParameterTable::add(Parameter parameter) {
    parameter.offset = flat_;
    flat_ += parameter.blocks() * ops::optimizer_block;
    ParameterSlice& unit = units_[static_cast<std::size_t>(unit_of(parameter))];
    UNSLOTH_CHECK(unit.elements() == 0 || unit.end == parameter.offset, parameter.name, " is apart from its unit");
    unit = {unit.elements() == 0 ? parameter.offset : unit.begin, flat_};
    if (!parameter.of_tower)  // which is found by name
        index_.try_emplace({parameter.role, parameter.id, parameter.kind},
                           parameters_.size());  // the first one is found
    parameters_.push_back(std::move(parameter));
}

ParameterTable ParameterTable::lora(const spec::ModelSpec& spec, const std::vector<spec::LayerLora>& lora,
                                    const std::vector<std::string>& modules_to_save,
                                    const std::vector<spec::TowerLora>& tower) {
    ParameterTable table(static_cast<int>(spec.num_layers));
    for (std::size_t layer = 0; layer < lora.size(); ++layer) {
        const auto add = [&](Parameter::Kind kind) {
            for (const spec::Projection p : spec.adaptable_of(static_cast<int64_t>(layer))) {
                const spec::LinearId id{static_cast<int>(layer), p};
                const spec::LoraModule& module = lora[layer][p];
                if (module.r == 0 || (kind == Parameter::Kind::magnitude && !module.dora)) continue;
                const bool within = lora[layer].is_within(p), crosses = lora[layer].crosses;
                const int64_t experts = is_of_experts(p) ? spec.experts->count : 0,
                              each = std::max<int64_t>(1, experts), n = spec.out_features(p);
                Parameter parameter{kind,
                                    formats::lora_a_name(id, spec.stem(), within, crosses),
                                    spec::TensorRole::linear,
                                    id,
                                    {each * module.r, spec.in_features(p)}};
                parameter.experts = experts;
                if (kind == Parameter::Kind::lora_b) {
                    parameter.by_turns = p == spec::Projection::experts_gate_up && spec.experts->transposed;
                    parameter.name = formats::lora_b_name(id, spec.stem(), within, crosses);
                    parameter.shape = {each * n, module.r};
                } else if (kind == Parameter::Kind::magnitude) {
                    parameter.name = formats::magnitude_name(id, spec.stem(), crosses);
                    parameter.shape = {n};
                }
                table.add(std::move(parameter));
            }
        };
        // A's of a group are adjacent, so that one product can yield all their gradients.
        add(Parameter::Kind::lora_a);
        add(Parameter::Kind::lora_b);
        add(Parameter::Kind::magnitude);
    }
    const auto add_tower = [&] {
        for (const spec::TowerLora& linear : tower)
            for (const bool is_a : {true, false}) {
                const std::vector<int64_t> shape =
                    is_a ? std::vector{linear.lora.r, linear.k} : std::vector{linear.n, linear.lora.r};
                Parameter parameter{is_a ? Parameter::Kind::lora_a : Parameter::Kind::lora_b,
                                    is_a ? formats::tower_lora_a_name(linear) : formats::tower_lora_b_name(linear),
                                    spec::TensorRole::linear,
                                    {},
                                    shape};
                parameter.of_tower = true;
                table.add(std::move(parameter));
            }
    };
    const bool embeds = std::ranges::find(modules_to_save, "embed_tokens") != modules_to_save.end();
    if (!embeds) add_tower();
    for (const std::string& module : modules_to_save) {
        const spec::TensorRole role =
            module == "embed_tokens" ? spec::TensorRole::embed_tokens : spec::TensorRole::lm_head;
        if (role == spec::TensorRole::embed_tokens) add_tower();  // next to what is of the same unit
        table.add(
            {Parameter::Kind::base,
             formats::saved_module_name(module, spec.stem()),
             role,
             {},
             {role == spec::TensorRole::embed_tokens ? spec.embedding_rows() : spec.vocab_size, spec.hidden_size}});
    }
    return table;
}

ParameterTable ParameterTable::full(const spec::ModelSpec& spec) {
    ParameterTable table(static_cast<int>(spec.num_layers));
    table.embeddings_are_head_ = spec.tie_word_embeddings;
    for (const spec::TensorRule& rule : spec::tensor_table(spec))
        table.add({Parameter::Kind::base, rule.hf_name, rule.role, rule.id, rule.shape, 0, rule.shape.size() >= 2,
                   rule.offset});
    return table;
}

ParameterTable ParameterTable::of(const spec::Stage& stage, bool tied) const {
    ParameterTable table(layers_);
    table.embeddings_are_head_ = embeddings_are_head_;
    for (const Parameter& p : parameters_)
        if (stage.holds(p.role, p.id.layer, tied)) table.add(p);
    return table;
}

int64_t ParameterTable::trainable_elements() const {
    int64_t sum = 0;
    for (const Parameter& p : parameters_) sum += p.elements();
    return sum;
}

int64_t ParameterTable::end_of(const Parameter& p) const {
    return p.offset + p.blocks() * ops::optimizer_block;
}

const Parameter* ParameterTable::find(spec::TensorRole role, spec::LinearId id, Parameter::Kind kind) const {
    const auto found = index_.find({role, id, kind});
    return found == index_.end() ? nullptr : &parameters_[found->second];
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

int ParameterTable::unit_of(const Parameter& p) const {
    if (p.id.layer >= 0) return layer_unit(p.id.layer);
    return p.of_tower || p.role == spec::TensorRole::embed_tokens ? embedding_unit : head();
}

WorkingLayout::WorkingLayout(const ParameterTable& table, at::ScalarType dtype)
    : dtype_(dtype), flat_(table.flat_elements()) {
    int64_t byte = 0;
    const std::vector<Parameter>& all = table.parameters();
    for (std::size_t i = 0; i < all.size(); ++i) {
        const int64_t end = i + 1 < all.size() ? all[i + 1].offset : flat_;
        first_.push_back(all[i].offset);
        byte_.push_back(byte);
        item_.push_back(static_cast<int64_t>(c10::elementSize(type_of(all[i]))));
        byte += (end - all[i].offset) * item_.back();
    }
}

at::ScalarType WorkingLayout::type_of(const Parameter& p) const {
    return p.kind == Parameter::Kind::base && p.shape.size() == 2 ? dtype_ : at::kFloat;
}

int64_t WorkingLayout::byte_of(int64_t element) const {
    if (first_.empty()) return 0;
    const auto i =
        static_cast<std::size_t>(std::upper_bound(first_.begin(), first_.end(), element) - first_.begin() - 1);
    return byte_[i] + (element - first_[i]) * item_[i];
}

}  // namespace unsloth::weights
