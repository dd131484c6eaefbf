#include "unsloth/core/error.h"
#include "unsloth/formats/load_plan.h"
#include "unsloth/spec/convert.h"

namespace unsloth::formats {
namespace {

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

}  // namespace unsloth::formats
