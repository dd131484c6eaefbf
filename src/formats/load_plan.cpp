#include "unsloth/formats/load_plan.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <set>
#include <utility>

#include "formats/experts_layout.h"
#include "formats/plain_tensor.h"
#include "formats/problem_list.h"
#include "formats/vision_rules.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/formats/peft.h"
#include "unsloth/spec/convert.h"

namespace unsloth::formats {
namespace {

/// Checks one rule; what is wrong is added to `problems`, and the source then stays without a tensor.
class Resolver {
  public:
    Resolver(const Checkpoint& checkpoint, const spec::ModelSpec& spec) : checkpoint_(checkpoint), spec_(spec) {}

    ModelTensors resolve() {
        std::vector<TensorSource> sources;
        for (spec::TensorRule& rule : spec::tensor_table(spec_)) sources.push_back(resolve_rule(std::move(rule)));
        std::vector<TensorSource> vision = resolve_vision();
        find_unknown();
        problems_.throw_if_any(checkpoint_.folder().string(),
                               "The tensors must be those that config.json describes; the folder may mix two models.");
        ModelTensors tensors(std::move(sources));
        tensors.others = std::move(others_);
        tensors.vision = std::move(vision);
        tensors.rows_of_all_experts = std::move(parts_);
        return tensors;
    }

  private:
    std::vector<TensorSource> resolve_vision() {
        std::vector<TensorSource> sources;
        const std::vector<spec::TensorRule> names = vision_rules(spec_, /*within=*/true);
        const bool within = !names.empty() && checkpoint_.find(names.front().hf_name) != nullptr;
        for (spec::TensorRule& rule : vision_rules(spec_, within)) {
            sources.push_back(resolve_rule(std::move(rule)));
            flatten_shape(sources.back().rule.shape);
        }
        return sources;
    }

    TensorSource resolve_rule(spec::TensorRule rule) {
        TensorSource source;
        source.rule = std::move(rule);
        const std::string& name = source.rule.hf_name;
        if (const auto weight = mxfp4_of_all_experts(source.rule)) {
            source.stored = *weight;
            return source;
        }
        if (const auto part = experts_part(spec_, source.rule)) {
            resolve_part(source, *part);
            return source;
        }
        const TensorView* tensor = checkpoint_.find(name);
        if (tensor == nullptr && source.rule.id.expert >= 0) tensor = rows_of_all_experts(source.rule);
        if (tensor == nullptr) {
            problems_.missing.add(cat(name, " ", shape_text(source.rule.shape)));
            return source;
        }
        used_.insert(name);
        source.stored = tensor;
        if (auto in_4bit = find_quant4(checkpoint_, name)) {
            source.stored = *std::move(in_4bit);
        } else if (auto in_8bit = find_int8(checkpoint_, name)) {
            source.stored = *std::move(in_8bit);
        }
        std::visit([&](const auto& stored) { check(source, stored); }, source.stored);
        return source;
    }

    /// Where all experts of a layer are one parameter [E, each, columns], as models of transformers 5 hold them: gate's
    /// rows and then up's, or down's. The rows of an expert's matrix are `count` from `first` of E · each on.
    struct AllExperts {
        std::string name;
        int64_t each = 0, first = 0, count = 0;
    };
    AllExperts all_experts(const spec::TensorRule& rule) const {
        const std::string one = spec::path_of(rule.id);
        const bool down = rule.id.projection == spec::Projection::down;
        const int64_t each = (down ? 1 : 2) * rule.shape[0];
        return {
            cat(rule.hf_name.substr(0, rule.hf_name.find(one)), "mlp.experts.", down ? "down_proj" : "gate_up_proj"),
            each, rule.id.expert * each + (rule.id.projection == spec::Projection::up ? rule.shape[0] : 0),
            rule.shape[0]};
    }

    /// Whether a tensor that all experts share has this shape; if not, it is a problem, named once.
    bool has_shape(const TensorView& all, const std::vector<int64_t>& expected) {
        const bool known = used_.insert(all.name).second;
        if (all.shape == expected && all.elements() > 0) return true;
        if (known)
            problems_.unusable.add(
                cat(all.name, ": expected ", shape_text(expected), ", found ", shape_text(all.shape)));
        return false;
    }

    /// The matrix's rows of such a tensor.
    const TensorView* rows_of(const TensorView& all, const AllExperts& experts, const spec::TensorRule& rule,
                              std::vector<int64_t> shape) {
        const std::size_t row = all.data.size() / static_cast<std::size_t>(spec_.experts->count * experts.each),
                          first = static_cast<std::size_t>(experts.first) * row;
        TensorView part = all;
        part.name = rule.hf_name;
        part.shape = std::move(shape);
        part.data = all.data.subspan(first, static_cast<std::size_t>(experts.count) * row);
        part.file_offset += first;
        return &parts_->emplace_back(std::move(part));
    }

    /// nullptr: there is none.
    const TensorView* rows_of_all_experts(const spec::TensorRule& rule) {
        const AllExperts experts = all_experts(rule);
        const TensorView* const all = checkpoint_.find(experts.name);
        if (all == nullptr || !has_shape(*all, {spec_.experts->count, experts.each, rule.shape[1]})) return nullptr;
        return rows_of(*all, experts, rule, rule.shape);
    }

    /// The same in MXFP4. Families whose 16-bit tensors are transposed have rows of gate and up by turns here.
    std::optional<Mxfp4Weight> mxfp4_of_all_experts(const spec::TensorRule& rule) {
        if (rule.id.expert < 0 || rule.role != spec::TensorRole::linear) return std::nullopt;
        AllExperts experts = all_experts(rule);
        const bool by_turns = spec_.experts->transposed && rule.id.projection != spec::Projection::down;
        if (by_turns) experts.first = rule.id.expert * experts.each, experts.count = experts.each;
        const TensorView* const blocks = checkpoint_.find(cat(experts.name, mxfp4_blocks_suffix));
        const TensorView* const scales = checkpoint_.find(cat(experts.name, mxfp4_scales_suffix));
        if (blocks == nullptr || scales == nullptr) return std::nullopt;
        const int64_t rows = rule.shape[0], cols = rule.shape[1], in_row = cols / spec::mxfp4_block;
        const bool fit = has_shape(*blocks, {spec_.experts->count, experts.each, in_row, spec::mxfp4_block / 2}) &&
                         has_shape(*scales, {spec_.experts->count, experts.each, in_row});
        if (!fit) return std::nullopt;
        for (const TensorView* const part : {blocks, scales})
            if (part->dtype != spec::DType::u8) {
                problems_.unusable.add(cat(part->name, ": expected U8, found ", safetensors_name(part->dtype)));
                return std::nullopt;
            }
        if (cols % spec::mxfp4_block != 0) {
            problems_.unusable.add(cat(experts.name, ": MXFP4 takes inputs of a multiple of 32, not ", cols));
            return std::nullopt;
        }
        return Mxfp4Weight{.blocks = rows_of(*blocks, experts, rule, {experts.count, in_row, spec::mxfp4_block / 2}),
                           .scales = rows_of(*scales, experts, rule, {experts.count, in_row}),
                           .first_row = by_turns && rule.id.projection == spec::Projection::up ? 1 : 0,
                           .row_step = by_turns ? 2 : 1,
                           .rows = rows,
                           .cols = cols};
    }

    /// An expert's part of a tensor of all, which is reported once.
    void resolve_part(TensorSource& source, const ExpertsPart& part) {
        const TensorView* const all = checkpoint_.find(part.name);
        const bool known = !used_.insert(part.name).second;
        if (all == nullptr) {
            if (!known) problems_.missing.add(cat(part.name, " ", shape_text(part.shape)));
            return;
        }
        const bool plain = is_plain(*all);
        if (!plain || all->shape != part.shape) {
            if (!known)
                problems_.unusable.add(cat(part.name, ": expected F32, BF16 or F16 ", shape_text(part.shape),
                                           ", found ", safetensors_name(all->dtype), " ", shape_text(all->shape)));
            return;
        }
        const TensorView*& values = values_[{part.name, source.rule.id.expert}];
        if (values == nullptr) {
            const int64_t each = part.values_of_each();
            const std::size_t bytes = static_cast<std::size_t>(each) * spec::size_of(all->dtype);
            TensorView view = *all;
            view.shape.erase(view.shape.begin());
            view.data = all->data.subspan(static_cast<std::size_t>(source.rule.id.expert) * bytes, bytes);
            view.file_offset += static_cast<std::size_t>(source.rule.id.expert) * bytes;
            values = &parts_->emplace_back(std::move(view));
        }
        source.stored = StridedTensor{values, part.first, part.row_stride, part.col_stride, part.last};
    }

    void check(const TensorSource&, const StridedTensor&) {}

    void check(const TensorSource& source, const Quant4Weight& weight) {
        const std::string& name = source.rule.hf_name;
        for (const TensorView* part : weight.parts) used_.insert(part->name);
        const spec::Quant4View& view = weight.view;
        if (!source.rule.may_be_quantised) {
            problems_.unusable.add(cat(name, ": is quantised to 4 bit, but only matrices may be"));
        } else if (std::vector<int64_t>{view.rows, view.cols} != source.rule.shape) {
            problems_.unusable.add(cat(name, ": expected ", shape_text(source.rule.shape), ", its quant_state says ",
                                       shape_text({view.rows, view.cols})));
        }
    }

    void check(const TensorSource&, const Mxfp4Weight&) {}  // where it was found

    void check(const TensorSource& source, const Int8Weight& weight) {
        const std::string& name = source.rule.hf_name;
        for (const TensorView* part : weight.parts()) used_.insert(part->name);
        if (!source.rule.may_be_quantised) {
            problems_.unusable.add(cat(name, ": is quantised to 8 bit, but only matrices may be"));
        } else if (weight.codes->shape != source.rule.shape) {
            problems_.unusable.add(cat(name, ": expected ", shape_text(source.rule.shape), ", found I8 ",
                                       shape_text(weight.codes->shape)));
        }
    }

    void check(const TensorSource& source, const TensorView* stored) {
        const std::string& name = source.rule.hf_name;
        const TensorView& tensor = *stored;
        const std::string found = cat(safetensors_name(tensor.dtype), " ", shape_text(tensor.shape));
        if (tensor.dtype == spec::DType::i8 && source.rule.may_be_quantised) {
            problems_.unusable.add(
                cat(name, ": found ", found, ", 8-bit codes without their ", int8_maxima_name(name)));
        } else if (tensor.dtype == spec::DType::u8 && source.rule.may_be_quantised) {
            problems_.unusable.add(cat(name, ": found ", found, ", packed codes without their quant_state"));
        } else if (tensor.dtype != spec::DType::f32 && tensor.dtype != spec::DType::bf16 &&
                   tensor.dtype != spec::DType::f16) {
            problems_.unusable.add(cat(name, ": expected F32, BF16 or F16, found ", found));
        } else if (tensor.shape != source.rule.shape) {
            problems_.unusable.add(cat(name, ": expected ", shape_text(source.rule.shape), ", found ", found));
        }
    }

    void find_unknown() {
        for (const std::string& name : checkpoint_.names()) {
            if (spec::is_of_another_part(spec_, name)) {
                others_.push_back(&checkpoint_.at(name));
                if (!spec_.vision || used_.count(name) != 0) continue;
            }
            if (used_.count(name) != 0 || spec::is_ignorable_tensor(spec_, name)) continue;
            const TensorView& tensor = checkpoint_.at(name);
            problems_.unknown.add(cat(name, " ", safetensors_name(tensor.dtype), " ", shape_text(tensor.shape)));
        }
    }

    const Checkpoint& checkpoint_;
    const spec::ModelSpec& spec_;
    std::set<std::string> used_;
    std::vector<const TensorView*> others_;
    std::shared_ptr<std::deque<TensorView>> parts_ = std::make_shared<std::deque<TensorView>>();
    std::map<std::pair<std::string, int>, const TensorView*> values_;  ///< by tensor and expert, in parts_
    TensorProblems problems_;
};

}  // namespace

ModelTensors resolve_tensors(const Checkpoint& checkpoint, const spec::ModelSpec& spec) {
    return Resolver(checkpoint, spec).resolve();
}

}  // namespace unsloth::formats
