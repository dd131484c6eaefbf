#include "unsloth/formats/load_plan.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <set>
#include <utility>

#include "formats/experts_layout.h"
#include "formats/problem_list.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/formats/peft.h"
#include "unsloth/spec/convert.h"

namespace unsloth::formats {
namespace {

bool is_plain(const TensorView& tensor) {
    return tensor.dtype == spec::DType::f32 || tensor.dtype == spec::DType::bf16 || tensor.dtype == spec::DType::f16;
}

/// Checks one rule; what is wrong is added to `problems`, and the source then stays without a tensor.
class Resolver {
  public:
    Resolver(const Checkpoint& checkpoint, const spec::ModelSpec& spec) : checkpoint_(checkpoint), spec_(spec) {}

    ModelTensors resolve() {
        std::vector<TensorSource> sources;
        for (spec::TensorRule& rule : spec::tensor_table(spec_)) sources.push_back(resolve_rule(std::move(rule)));
        find_unknown();
        problems_.throw_if_any(checkpoint_.folder().string(),
                               "The tensors must be those that config.json describes; the folder may mix two models.");
        ModelTensors tensors(std::move(sources));
        tensors.others = std::move(others_);
        tensors.rows_of_all_experts = std::move(parts_);
        return tensors;
    }

  private:
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
            if (used_.count(name) != 0 || spec::is_ignorable_tensor(spec_, name)) continue;
            const TensorView& tensor = checkpoint_.at(name);
            if (spec::is_of_another_part(spec_, name)) {
                others_.push_back(&tensor);
                continue;
            }
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

/// A column's rows are near each other: each is read as one stretch.
void read_strided(const StridedTensor& part, int64_t row_begin, int64_t row_end, int64_t cols, float* out) {
    const int64_t rows = row_end - row_begin;
    if (rows == 0) return;
    const int64_t length = (rows - 1) * part.row_stride + 1;
    std::vector<float> stretch(static_cast<std::size_t>(length));
    for (int64_t k = 0; k < cols; ++k) {
        const int64_t first = part.first + row_begin * part.row_stride + k * part.col_stride;
        spec::convert_to_f32(part.of->dtype,
                             part.of->data.data() + static_cast<std::size_t>(first) * spec::size_of(part.of->dtype),
                             length, stretch.data());
        for (int64_t n = 0; n < rows; ++n) out[n * cols + k] = stretch[static_cast<std::size_t>(n * part.row_stride)];
    }
}

}  // namespace

const TensorView* TensorSource::plain() const {
    const auto* const view = std::get_if<const TensorView*>(&stored);
    return view != nullptr ? *view : nullptr;
}

const TensorView& TensorSource::tensor() const {
    if (const Quant4Weight* const weight = quant4()) return *weight->parts.front();
    if (const Int8Weight* const weight = int8()) return *weight->codes;
    if (const Mxfp4Weight* const weight = mxfp4()) return *weight->blocks;
    if (const StridedTensor* const part = strided()) return *part->of;
    return *plain();
}

std::size_t TensorSource::stored_bytes() const {
    if (const Quant4Weight* const weight = quant4()) return weight->stored_bytes();
    if (const Int8Weight* const weight = int8()) return weight->stored_bytes();
    if (const Mxfp4Weight* const weight = mxfp4()) return weight->stored_bytes();
    if (const StridedTensor* const part = strided())
        return static_cast<std::size_t>(rows() * cols()) * spec::size_of(part->of->dtype);
    return plain()->data.size();
}

void TensorSource::drop() const noexcept {
    if (const Quant4Weight* const weight = quant4()) return weight->drop();
    if (const Int8Weight* const weight = int8()) return weight->drop();
    if (const Mxfp4Weight* const weight = mxfp4()) return weight->drop();
    if (const StridedTensor* const part = strided()) return part->last ? part->of->drop() : void();
    plain()->drop();
}

void TensorSource::read_f32(int64_t row_begin, int64_t row_end, float* out) const {
    UNSLOTH_CHECK(0 <= row_begin && row_begin <= row_end && row_end <= rows(), rule.hf_name, ": rows ", row_begin,
                  " to ", row_end);
    if (const Quant4Weight* const weight = quant4()) return dequantize_rows(weight->view, row_begin, row_end, out);
    if (const Int8Weight* const weight = int8()) return dequantize_rows(*weight, row_begin, row_end, out);
    if (const Mxfp4Weight* const weight = mxfp4()) return dequantize_rows(*weight, row_begin, row_end, out);
    if (const StridedTensor* const part = strided()) return read_strided(*part, row_begin, row_end, cols(), out);
    const TensorView& values = *plain();
    const std::size_t row_bytes = static_cast<std::size_t>(cols()) * spec::size_of(values.dtype);
    spec::convert_to_f32(values.dtype, values.data.data() + static_cast<std::size_t>(row_begin) * row_bytes,
                         (row_end - row_begin) * cols(), out);
}

ModelTensors::ModelTensors(std::vector<TensorSource> sources) : sources_(std::move(sources)) {
    for (std::size_t i = 0; i < sources_.size(); ++i) {
        const spec::TensorRule& rule = sources_[i].rule;
        index_.emplace(rule.hf_name, i);
        if (rule.role == spec::TensorRole::linear) linears_.emplace(rule.id, i);
        if (rule.role == spec::TensorRole::bias) biases_.emplace(rule.id, i);
        if (spec::is_vector(rule.role) || rule.role == spec::TensorRole::router)
            norms_[rule.id.layer].push_back(rule.role);
    }
}

const TensorSource* ModelTensors::find(const std::string& hf_name) const {
    const auto it = index_.find(hf_name);
    return it == index_.end() ? nullptr : &sources_[it->second];
}

const TensorSource& ModelTensors::linear(spec::LinearId id) const {
    const auto found = linears_.find(id);
    UNSLOTH_CHECK(found != linears_.end(), "layer ", id.layer, " has no ", name_of(id.projection));
    return sources_[found->second];
}

const TensorSource* ModelTensors::bias(spec::LinearId id) const {
    const auto found = biases_.find(id);
    return found == biases_.end() ? nullptr : &sources_[found->second];
}

const TensorSource& ModelTensors::of(spec::TensorRole role, int layer) const {
    UNSLOTH_CHECK(role != spec::TensorRole::linear && role != spec::TensorRole::bias,
                  "a layer has several of this role");
    for (const TensorSource& source : sources_)
        if (source.rule.role == role && source.rule.id.layer == layer) return source;
    UNSLOTH_CHECK(false, "the model has no tensor of role ", static_cast<int>(role), " in layer ", layer);
    return sources_.front();
}

const TensorSource& ModelTensors::head() const {
    const auto head = std::ranges::find(sources_, spec::TensorRole::lm_head,
                                        [](const TensorSource& source) { return source.rule.role; });
    return head != sources_.end() ? *head : of(spec::TensorRole::embed_tokens);
}

void ModelTensors::replace(const std::string& hf_name, const TensorView& tensor) {
    TensorSource& source = sources_.at(index_.at(hf_name));
    UNSLOTH_CHECK(tensor.shape == source.rule.shape, hf_name, ": ", shape_text(tensor.shape));
    source.stored = &tensor;
}

int64_t ModelTensors::parameters() const {
    int64_t count = 0;
    for (const TensorSource& source : sources_) count += source.rows() * source.cols();
    return count;
}

std::size_t ModelTensors::stored_bytes() const {
    std::size_t bytes = 0;
    for (const TensorSource& source : sources_) bytes += source.stored_bytes();
    return bytes;
}

int64_t ModelTensors::quantised_linears() const {
    int64_t count = 0;
    for (const TensorSource& source : sources_)
        count += source.rule.role == spec::TensorRole::linear && source.quantised();
    return count;
}

int64_t ModelTensors::int8_linears() const {
    int64_t count = 0;
    for (const TensorSource& source : sources_)
        count += source.rule.role == spec::TensorRole::linear && source.int8() != nullptr;
    return count;
}

spec::WeightType stored_type(const TensorSource& source) {
    if (!source.rule.may_be_quantised) return spec::WeightType::automatic;
    if (const Quant4Weight* const weight = source.quant4())
        return weight->type == Quant4Type::nf4 ? spec::WeightType::nf4 : spec::WeightType::fp4;
    if (source.int8() != nullptr) return spec::WeightType::int8;
    if (source.mxfp4() != nullptr) return spec::WeightType::mxfp4;
    const spec::DType type = source.tensor().dtype;
    return type == spec::DType::f32    ? spec::WeightType::f32
           : type == spec::DType::bf16 ? spec::WeightType::bf16
                                       : spec::WeightType::f16;
}

spec::WeightType HeldTypes::of(const TensorSource& source, const spec::ModelSpec& model) const {
    const spec::WeightType asked = precision.of(source.rule, model), stored = stored_type(source);
    if (asked != spec::WeightType::automatic) return asked;
    if (source.rule.role != spec::TensorRole::linear || spec::is_quantised(stored)) return stored;
    return load_in_8bit ? spec::WeightType::int8 : load_in_4bit ? spec::WeightType::nf4 : stored;
}

ModelTensors resolve_tensors(const Checkpoint& checkpoint, const spec::ModelSpec& spec) {
    return Resolver(checkpoint, spec).resolve();
}

namespace {

/// Whether two tensors hold the same values, whatever their types.
bool are_equal(const TensorView& a, const TensorView& b) {
    if (a.shape != b.shape) return false;
    if (a.dtype == b.dtype) return std::memcmp(a.data.data(), b.data.data(), a.data.size()) == 0;
    if (!is_plain(a) || !is_plain(b)) return false;
    constexpr int64_t piece = int64_t{1} << 16;
    std::vector<float> values_a(piece), values_b(piece);
    const auto values = [](const TensorView& tensor, int64_t begin, int64_t count, float* out) {
        spec::convert_to_f32(tensor.dtype,
                             tensor.data.data() + static_cast<std::size_t>(begin) * spec::size_of(tensor.dtype), count,
                             out);
    };
    for (int64_t begin = 0; begin < a.elements(); begin += piece) {
        const int64_t count = std::min(piece, a.elements() - begin);
        values(a, begin, count, values_a.data());
        values(b, begin, count, values_b.data());
        if (!std::equal(values_a.begin(), values_a.begin() + count, values_b.begin())) return false;
    }
    return true;
}

}  // namespace

spec::ModelSpec model_spec_of(const Checkpoint& checkpoint) {
    const std::string stem(read_model_spec(checkpoint.folder()).stem());
    const TensorView* const embedding = checkpoint.find(stem + "model.embed_tokens.weight");
    const TensorView* const head = checkpoint.find(stem + "lm_head.weight");
    spec::ModelSpec spec = read_model_spec(
        checkpoint.folder(), embedding != nullptr && is_plain(*embedding) ? embedding->dtype : spec::DType::f32);
    if (!spec.tie_word_embeddings || embedding == nullptr || head == nullptr) return spec;
    spec.tie_word_embeddings = are_equal(*embedding, *head);
    embedding->drop();
    head->drop();
    if (!spec.tie_word_embeddings)
        log::warning(checkpoint.folder().string(),
                     ": config.json says tie_word_embeddings, and lm_head.weight holds other values than "
                     "model.embed_tokens.weight: the two are not tied, as in transformers 5");
    return spec;
}

WeightFile WeightFile::open(const std::string& path, const std::string& rope_scaling,
                            const std::filesystem::path& adapter) {
    Checkpoint checkpoint = Checkpoint::open(path);
    spec::ModelSpec spec = model_spec_of(checkpoint);
    if (!rope_scaling.empty() && rope_scaling != "{}") set_rope_scaling(spec, rope_scaling, "rope_scaling");
    auto quantization = read_quantization_config(checkpoint.folder());
    check_quantization_config(quantization, spec, (checkpoint.folder() / "config.json").string());
    ModelTensors tensors = resolve_tensors(checkpoint, spec);
    WeightFile file{std::move(spec), std::move(quantization), std::move(checkpoint), std::move(tensors), nullptr};
    if (!adapter.empty()) file.take_stand_ins(adapter);
    return file;
}

void WeightFile::take_stand_ins(const std::filesystem::path& adapter) {
    Adapter opened = read_adapter(adapter, spec);
    const TensorView* const embedding = opened.stand_in("embed_tokens");
    const TensorView* const head = opened.stand_in("lm_head");
    if (embedding == nullptr && head == nullptr) return;
    if (spec.tie_word_embeddings && embedding != nullptr && head != nullptr && !are_equal(*embedding, *head))
        throw Error("adapter.unsupported",
                    cat(adapter.string(),
                        ": stores an lm_head of other values than its embed_tokens, and the "
                        "model ties the two (tie_word_embeddings)"),
                    "Merge it with PEFT into a model with tie_word_embeddings false, and train that.");
    stand_ins = std::make_shared<const SafetensorsFile>(std::move(opened.file));
    for (const TensorView* tensor : {embedding, head}) {
        if (tensor == nullptr) continue;
        const bool is_head = tensor == head && !spec.tie_word_embeddings;
        tensors.replace(cat(spec.stem(), is_head ? "lm_head.weight" : "model.embed_tokens.weight"), *tensor);
    }
    log::info(adapter.string(), ": its ", embedding == nullptr ? "lm_head" : "embed_tokens",
              embedding != nullptr && head != nullptr ? " and lm_head stand" : " stands",
              " in for the base's, frozen, as PEFT loads them");
}

std::vector<const TensorView*> WeightFile::stand_in_tensors() const {
    std::vector<const TensorView*> found;
    for (const TensorSource& source : tensors.all())
        if (const TensorView* const tensor = source.plain();
            stand_ins && tensor != nullptr && tensor->file == &stand_ins->map())
            found.push_back(tensor);
    return found;
}

}  // namespace unsloth::formats
