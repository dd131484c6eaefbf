#include "unsloth/formats/merge.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "formats/experts_layout.h"
#include "formats/json.h"
#include "formats/tensor_floats.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/half.h"
#include "unsloth/spec/convert.h"

namespace unsloth::formats {
namespace {

/// Whose adapter a matrix has: experts share one, of all that are in a layer.
spec::LinearId adapted_of(spec::LinearId id) {
    if (id.expert < 0) return id;
    return {id.layer, id.projection == spec::Projection::down ? spec::Projection::experts_down
                                                              : spec::Projection::experts_gate_up};
}

/// An expert's A, r rows of all experts' in turn.
std::vector<float> expert_a(const TensorView& all, int64_t r, int expert) {
    const int64_t count = r * all.shape[1];
    std::vector<float> values(static_cast<std::size_t>(count));
    spec::convert_to_f32(all.dtype,
                         all.data.data() + static_cast<std::size_t>(expert * count) * spec::size_of(all.dtype), count,
                         values.data());
    return values;
}

/// Rows of an expert's B [N, r], of all experts' [N, r E], the experts innermost: the first, and each `step` rows.
std::vector<float> expert_b(const TensorView& all, int64_t r, int expert, int64_t first_row, int64_t step,
                            int64_t rows) {
    const int64_t experts = all.shape[1] / r;
    std::vector<float> values(static_cast<std::size_t>(rows * r));
    for (int64_t i = 0; i < rows * r; ++i) {
        const int64_t element = ((first_row + i / r * step) * r + i % r) * experts + expert;
        spec::convert_to_f32(all.dtype, all.data.data() + static_cast<std::size_t>(element) * spec::size_of(all.dtype),
                             1, values.data() + i);
    }
    return values;
}

std::span<const std::byte> bytes_of_rows(const TensorView& tensor, int64_t cols, int64_t row_begin, int64_t row_end) {
    const auto row_bytes = static_cast<std::size_t>(cols) * spec::size_of(tensor.dtype);
    return tensor.data.subspan(static_cast<std::size_t>(row_begin) * row_bytes,
                               static_cast<std::size_t>(row_end - row_begin) * row_bytes);
}

void drop_rows(const TensorView& tensor, int64_t cols, int64_t row_begin, int64_t row_end) noexcept {
    const auto rows = bytes_of_rows(tensor, cols, row_begin, row_end);
    tensor.file->drop(tensor.file_offset + static_cast<std::size_t>(rows.data() - tensor.data.data()), rows.size());
}

}  // namespace

void set_row_norms(const float* magnitude, int64_t rows, int64_t cols, float* w) {
    for (int64_t row = 0; row < rows; ++row) {
        float* const values = w + row * cols;
        double squares = 0;
        for (int64_t k = 0; k < cols; ++k) squares += static_cast<double>(values[k]) * static_cast<double>(values[k]);
        if (squares == 0) continue;
        const auto factor = static_cast<float>(static_cast<double>(magnitude[row]) / std::sqrt(squares));
        for (int64_t k = 0; k < cols; ++k) values[k] *= factor;
    }
}

void MergedTensor::read_f32(int64_t row_begin, int64_t row_end, float* out) const {
    UNSLOTH_CHECK(0 <= row_begin && row_begin <= row_end && row_end <= rows(), rule_.hf_name, ": rows ", row_begin,
                  " to ", row_end);
    if (saved_ != nullptr) {
        const auto rows = bytes_of_rows(*saved_, cols(), row_begin, row_end);
        return spec::convert_to_f32(saved_->dtype, rows.data(), (row_end - row_begin) * cols(), out);
    }
    if (quantised_) {
        dequantize_rows(quantised_->view(), row_begin, row_end, out);
    } else {
        read_base(row_begin, row_end, out);
        round_values(row_end - row_begin, out);
    }
    if (pruning_ != nullptr && pruning_->zero && rule_.role == spec::TensorRole::linear)
        pruning_->zero(rule_, row_end - row_begin, out);
    if (fixed_)
        fixed_->add(row_begin, row_end, out);
    else if (r_ > 0)
        add_low_rank(b_.data() + row_begin * r_, a_.data(), r_, scale_, row_end - row_begin, cols(), out);
    if (!magnitude_.empty()) set_row_norms(magnitude_.data() + row_begin, row_end - row_begin, cols(), out);
    if (grid_ != spec::ServeGrid::none) spec::round_rows_to_grid(grid_, row_end - row_begin, cols(), out);
}

void MergedTensor::read_base(int64_t row_begin, int64_t row_end, float* out) const {
    if (kept_rows_ == nullptr && kept_cols_ == nullptr) return base_->read_f32(row_begin, row_end, out);
    std::vector<float> whole(static_cast<std::size_t>(base_->cols()));
    for (int64_t row = row_begin; row < row_end; ++row, out += cols()) {
        const int64_t from = kept_rows_ == nullptr ? row : (*kept_rows_)[static_cast<std::size_t>(row)];
        if (kept_cols_ == nullptr) {
            base_->read_f32(from, from + 1, out);
            continue;
        }
        base_->read_f32(from, from + 1, whole.data());
        std::ranges::transform(*kept_cols_, out, [&](int64_t col) { return whole[static_cast<std::size_t>(col)]; });
    }
}

/// What was read, as the type that the base was held in had it.
void MergedTensor::round_values(int64_t rows, float* values) const {
    switch (rounds_to_) {
        case spec::WeightType::int8:
            return round_to_int8_rows(values, rows, cols());
        case spec::WeightType::bf16:
            for (int64_t i = 0; i < rows * cols(); ++i) values[i] = bf16_to_f32(f32_to_bf16(values[i]));
            return;
        case spec::WeightType::f16:
            for (int64_t i = 0; i < rows * cols(); ++i) values[i] = f16_to_f32(f32_to_f16(values[i]));
            return;
        default:
            return;
    }
}

void MergedTensor::drop(int64_t row_begin, int64_t row_end) const noexcept {
    if (saved_ != nullptr) return drop_rows(*saved_, cols(), row_begin, row_end);
    if (quantised_) return;  // open() read the base
    if (const bool by_rows = base_->plain() != nullptr || base_->int8() != nullptr; by_rows) {
        const auto of_base = [&](int64_t row) {
            return kept_rows_ == nullptr ? row : (*kept_rows_)[static_cast<std::size_t>(row)];
        };
        if (row_begin < row_end)
            drop_rows(base_->tensor(), base_->cols(), of_base(row_begin), of_base(row_end - 1) + 1);
    } else if (row_end == rows())
        base_->drop();  // codes of 4 bits, block maxima and parts have no rows of their own
}

MergedModel::MergedModel(const WeightFile& base, const Adapter* adapter, HeldTypes held, spec::ServeGrid grid)
    : base_(base), adapter_(adapter), held_(std::move(held)), grid_(grid), spec_(base.spec) {
    held_.precision.check(base_.spec);
    if (adapter_ != nullptr && !adapter_->config.lora.modules_to_save.empty()) spec_.tie_word_embeddings = false;
    tensors_ = spec::tensor_table(spec_);
}

MergedModel::MergedModel(const WeightFile& base, const Pruning& pruning)
    : base_(base), pruning_(&pruning), spec_(pruned_spec(base.spec, pruning)), tensors_(spec::tensor_table(spec_)) {}

std::string MergedModel::original_config() const {
    const std::string text = read_file(base_.checkpoint.folder() / "config.json");
    return pruning_ == nullptr ? text : pruned_config(text, *pruning_, base_.spec.num_layers);
}

/// Of the base: where that is tied and the result is not, the head begins as the embeddings were.
const TensorSource* MergedModel::source_of(const spec::TensorRule& rule) const {
    if (rule.role == spec::TensorRole::lm_head) return &base_.tensors.head();
    if (pruning_ == nullptr || rule.id.layer < 0) return base_.tensors.find(rule.hf_name);
    const auto place = static_cast<std::size_t>(rule.id.layer);
    spec::LinearId id = rule.id;
    id.layer = static_cast<int>(pruning_->layers[place]);
    if (id.expert >= 0 && !pruning_->experts.empty())
        id.expert = static_cast<int>(pruning_->experts[place][static_cast<std::size_t>(id.expert)]);
    if (rule.role == spec::TensorRole::linear) return &base_.tensors.linear(id);
    if (rule.role == spec::TensorRole::bias) return base_.tensors.bias(id);
    return &base_.tensors.of(rule.role, id.layer);
}

/// Removes the pruned parts. A neuron is a row of gate and up, an element of their biases, and a column of down. An
/// expert is a row of its layer's router, and an element of the router's bias.
void MergedModel::cut(MergedTensor& tensor) const {
    tensor.pruning_ = pruning_;
    if (pruning_ == nullptr) return;
    const spec::TensorRule& rule = tensor.rule_;
    const auto place = static_cast<std::size_t>(rule.id.layer);
    const bool linear = rule.role == spec::TensorRole::linear;
    if (!pruning_->experts.empty() && rule.role == spec::TensorRole::router)
        tensor.kept_rows_ = &pruning_->experts[place];
    if (!pruning_->experts.empty() && rule.role == spec::TensorRole::router_bias)
        tensor.kept_cols_ = &pruning_->experts[place];
    if (pruning_->neurons.empty() || (!linear && rule.role != spec::TensorRole::bias)) return;
    const std::vector<int64_t>& kept = pruning_->neurons[place];
    if (rule.id.projection == spec::Projection::gate || rule.id.projection == spec::Projection::up)
        (linear ? tensor.kept_rows_ : tensor.kept_cols_) = &kept;
    else if (rule.id.projection == spec::Projection::down && linear)
        tensor.kept_cols_ = &kept;
}

const TensorView* MergedModel::saved_module(const spec::TensorRule& rule) const {
    if (adapter_ == nullptr || (rule.role != spec::TensorRole::embed_tokens && rule.role != spec::TensorRole::lm_head))
        return nullptr;
    const auto& saved = adapter_->config.lora.modules_to_save;
    const std::string module = rule.role == spec::TensorRole::lm_head ? "lm_head" : "embed_tokens";
    return std::find(saved.begin(), saved.end(), module) == saved.end() ? nullptr : &adapter_->saved_module(module);
}

spec::LoraModule MergedModel::lora_of(const spec::TensorRule& rule) const {
    if (adapter_ == nullptr || rule.role != spec::TensorRole::linear) return {};
    return adapter_->layers[static_cast<std::size_t>(rule.id.layer)][adapted_of(rule.id).projection];
}

const Quant4Weight* MergedModel::unchanged_quant4(const spec::TensorRule& rule) const {
    if (pruning_ != nullptr || saved_module(rule) != nullptr || lora_of(rule).r > 0) return nullptr;
    if (grid_ != spec::ServeGrid::none && rule.role == spec::TensorRole::linear) return nullptr;  // all are rounded
    const TensorSource* const source = base_.tensors.find(rule.hf_name);
    const bool as_it_is =
        source != nullptr && source->quantised() && held_.of(*source, base_.spec) == stored_type(*source);
    return as_it_is ? source->quant4() : nullptr;
}

const Mxfp4Weight* MergedModel::unchanged_mxfp4(const spec::TensorRule& rule) const {
    const bool of_expert = rule.id.expert >= 0 && rule.role == spec::TensorRole::linear;
    return pruning_ == nullptr || pruning_->zero || !of_expert ? nullptr : source_of(rule)->mxfp4();
}

MergedTensor MergedModel::open(const spec::TensorRule& rule) const {
    MergedTensor tensor;
    tensor.rule_ = rule;
    tensor.saved_ = saved_module(rule);
    if (tensor.saved_ != nullptr) return tensor;
    tensor.base_ = source_of(rule);
    UNSLOTH_CHECK(tensor.base_ != nullptr, "the base has no ", rule.hf_name);
    cut(tensor);
    const spec::WeightType type = held_.of(*tensor.base_, base_.spec);
    if (type != stored_type(*tensor.base_) && spec::is_4bit(type)) {
        const auto read = [&](int64_t begin, int64_t end, float* out) {
            tensor.base_->read_f32(begin, end, out);
            if (tensor.base_->plain() != nullptr || tensor.base_->int8() != nullptr)
                drop_rows(tensor.base_->tensor(), tensor.cols(), begin, end);
        };
        const Quant4Type code = type == spec::WeightType::nf4 ? Quant4Type::nf4 : Quant4Type::fp4;
        tensor.quantised_ =
            std::make_shared<const Quant4Owned>(quantize_4bit(code, tensor.rows(), tensor.cols(), read));
    } else if (type != stored_type(*tensor.base_)) {
        tensor.rounds_to_ = type;
    }
    if (rule.role != spec::TensorRole::linear) return tensor;
    if (grid_ != spec::ServeGrid::nf4) tensor.grid_ = grid_;
    if (grid_ != spec::ServeGrid::none && tensor.cols() % spec::columns_of(grid_) != 0)
        throw Error("option.unsupported",
                    cat("grid ", name_of(grid_), " needs rows of a multiple of ", spec::columns_of(grid_),
                        " values; those of ", rule.hf_name, " have ", tensor.cols()),
                    "Take nf4 or fp8, which need a multiple of 8.");
    const spec::LoraModule lora = lora_of(rule);
    if (lora.r == 0) return tensor;
    tensor.r_ = lora.r;
    tensor.scale_ = static_cast<float>(lora.scale);
    read_factors(tensor, lora);
    if (grid_ == spec::ServeGrid::none) return tensor;
    if (lora.r > spec::largest_fixed_rank)
        throw Error("option.unsupported",
                    cat("grid ", name_of(grid_), " needs ranks of at most ", spec::largest_fixed_rank, "; that of ",
                        rule.hf_name, " is ", lora.r),
                    "Merge with --grid none, and quantise the result.");
    tensor.fixed_ = std::make_shared<const spec::FixedLowRank>(tensor.b_.data(), tensor.a_.data(), lora.r,
                                                               tensor.scale_, tensor.rows(), tensor.cols());
    return tensor;
}

void MergedModel::read_factors(MergedTensor& tensor, const spec::LoraModule& lora) const {
    const spec::TensorRule& rule = tensor.rule_;
    const TensorView &a = adapter_->a(adapted_of(rule.id)), &b = adapter_->b(adapted_of(rule.id));
    if (rule.id.expert >= 0) {
        tensor.a_ = expert_a(a, lora.r, rule.id.expert);
        const bool up = rule.id.projection == spec::Projection::up;
        if (const auto part = experts_part(spec_, rule))  // B's rows are the columns of the checkpoint's tensor
            tensor.b_ = expert_b(b, lora.r, rule.id.expert, part->first, part->row_stride, tensor.rows());
        else
            tensor.b_ = expert_b(b, lora.r, rule.id.expert, up ? tensor.rows() : 0, 1, tensor.rows());
        return;
    }
    tensor.a_ = floats_of(a);
    tensor.b_ = floats_of(b);
    if (lora.dora) tensor.magnitude_ = floats_of(adapter_->magnitude(rule.id));
}

int64_t MergedModel::changed_tensors() const {
    if (adapter_ == nullptr) return 0;
    auto count = static_cast<int64_t>(adapter_->config.lora.modules_to_save.size() + adapter_->tower.size());
    for (const spec::LayerLora& layer : adapter_->layers)
        for (const auto& adapted : layer)
            count += !is_of_experts(adapted.first)                        ? 1
                     : adapted.first == spec::Projection::experts_gate_up ? 2 * spec_.experts->count
                                                                          : spec_.experts->count;
    return count;
}

namespace {

/// What `read` finds in the model section of the run that wrote this folder; false where it does not say.
bool in_run_config(const std::filesystem::path& adapter_folder, const std::function<bool(const JsonReader&)>& read) {
    const auto path = adapter_folder / "run_config.json";
    if (!std::filesystem::exists(path)) return false;
    try {
        const auto json = parse_json<OrderedJson>(read_file(path), path.string());
        const auto model = JsonReader(json, path.string()).object("model");
        return model && read(*model);
    } catch (const Error&) {  // it is only used for a remark in the log
        return false;
    }
}

}  // namespace

bool trained_with_precision(const std::filesystem::path& adapter_folder) {
    return in_run_config(adapter_folder, [](const JsonReader& model) {
        const auto precision = model.object("precision");
        return precision && !precision->value().empty();
    });
}

TrainedOn trained_on(const std::filesystem::path& adapter_folder, const PeftConfig& adapter) {
    const auto said = [&](const char* option) {
        return in_run_config(adapter_folder,
                             [&](const JsonReader& model) { return model.boolean(option).value_or(false); });
    };
    const auto otherwise = [&](TrainedOn plain) {
        return said("load_in_8bit")   ? TrainedOn::quantised_to_8bit_while_loading
               : said("load_in_4bit") ? TrainedOn::quantised_while_loading
                                      : plain;
    };
    const std::string& name = adapter.base_model_name_or_path;
    try {
        if (const auto place = find_model_path(name)) {
            const WeightFile base = WeightFile::open(place->string());
            if (base.tensors.quantised_linears() > 0) return TrainedOn::file_4bit;
            if (base.tensors.int8_linears() > 0) return TrainedOn::file_8bit;
            return otherwise(TrainedOn::plain);
        }
    } catch (const Error&) {  // no checkpoint any more: as when it is not on this machine
    }
    if (name.find("4bit") != std::string::npos) return TrainedOn::file_4bit;
    if (name.find("8bit") != std::string::npos) return TrainedOn::file_8bit;
    return otherwise(TrainedOn::unknown);
}

}  // namespace unsloth::formats
