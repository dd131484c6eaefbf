#include "unsloth/model/loader.h"

#include <algorithm>

#include "unsloth/core/error.h"
#include "unsloth/core/hash.h"
#include "unsloth/model/fp8_source.h"
#include "unsloth/ops/fp8.h"

namespace unsloth::model {

at::ScalarType scalar_type(spec::DType type) {
    switch (type) {
        case spec::DType::f32:
            return at::kFloat;
        case spec::DType::bf16:
            return at::kBFloat16;
        case spec::DType::f16:
            return at::kHalf;
        case spec::DType::f64:
            return at::kDouble;
        case spec::DType::i64:
            return at::kLong;
        case spec::DType::i32:
            return at::kInt;
        case spec::DType::i16:
            return at::kShort;
        case spec::DType::i8:
            return at::kChar;
        case spec::DType::u8:
            return at::kByte;
        case spec::DType::boolean:
            return at::kBool;
        case spec::DType::f8_e4m3:
            return at::kFloat8_e4m3fn;
        case spec::DType::f8_e5m2:
            return at::kFloat8_e5m2;
    }
    throw CheckError("no such dtype");
}

namespace {

/// What the driver takes for a layer's forward and backward pass of one shape.
constexpr int64_t recorded_layer_bytes = 256 << 10;

}  // namespace

ModelPlan::ModelPlan(std::shared_ptr<const formats::WeightFile> file, LoadRequest request)
    : file_(std::move(file)), request_(std::move(request)) {
    const bool full = request_.finetuning_type == config::FinetuningType::full;
    if (full && file_->tensors.quantised_linears() + file_->tensors.int8_linears() > 0)
        throw usage_error(
            cat(file_->checkpoint.folder().string(), ": finetuning_type full needs 16/32-bit weights, these are ",
                file_->tensors.int8_linears() > 0 ? "8-bit" : "4-bit"),
            "Point model.path at the unquantised checkpoint, or use finetuning_type lora.");
    if (request_.adapter) {
        adapter_ = std::make_shared<const formats::Adapter>(formats::read_adapter(*request_.adapter, spec()));
        const double dropout = request_.lora ? request_.lora->lora_dropout : adapter_->config.lora.lora_dropout;
        request_.lora = adapter_->config.lora;
        request_.lora->lora_dropout = dropout;
    }
    if (full && request_.trains) {
        table_ = ParameterTable::full(spec());
    } else if (request_.lora) {
        lora_layers_ = spec::resolve_lora(*request_.lora, spec());
        table_ = ParameterTable::lora(spec(), lora_layers_, request_.lora->modules_to_save);
    }
    layout_ = make_layout(spec(), lora_layers_);
    if (request_.fp8) require_fp8();
    plan_resident();
    set_sizes(request_.sizes);
}

void ModelPlan::require_fp8() const {
    const auto refuse = [](const std::string& what, const char* advice) {
        throw usage_error("model.compute_dtype fp8 " + what, advice);
    };
    if (request_.finetuning_type == config::FinetuningType::full && request_.trains)
        refuse("is for a frozen base", "Train adapters (lora.finetuning_type lora), or leave compute_dtype out.");
    if (!ops::fp8_available(request_.device))
        refuse(cat("needs compute capability 9.0 (H100, H200), as products with a scale for each row exist there "
                   "alone; ",
                   request_.device.str(), " has another"),
               "Leave compute_dtype out.");
    if (request_.device.is_cuda() && request_.dtype != at::kBFloat16)
        refuse("goes with dtype bfloat16 on a GPU", "Set model.dtype to bfloat16.");
    for (const Group g : all_groups)
        if (layout_[g].n % 16 != 0 || layout_[g].k % 16 != 0)
            refuse(cat("needs sizes that are multiples of 16; ", name_of(g), " is ", layout_[g].n, " x ", layout_[g].k),
                   "Leave compute_dtype out.");
    const int64_t longest = ops::fp8_longest_row(request_.device);
    for (const Group g : all_groups)
        if (const int64_t row = std::max(layout_[g].n, layout_[g].k); row > longest)
            refuse(cat("takes rows of up to ", longest, " values; ", name_of(g), " has ", row),
                   "Leave compute_dtype out.");
}

/// Weights of 8 bit stay what they are: to quantise them a second time would lose twice.
bool ModelPlan::quantises(const formats::TensorSource& source) const {
    return request_.load_in_4bit && !source.quantised() && !source.int8;
}

at::ScalarType ModelPlan::matrix_type(const formats::TensorSource& source) const {
    return source.int8 ? request_.dtype : scalar_type(source.tensor->dtype);
}

bool ModelPlan::expands_4bit() const {
    return request_.device.is_cuda() && request_.weight_cache;
}

bool ModelPlan::embedding_on_host() const {
    const bool trained = table_ && table_->find(spec::TensorRole::embed_tokens, -1, spec::Projection::q,
                                                Parameter::Kind::base) != nullptr;
    return request_.device.is_cuda() && request_.offload_embedding && !trained && !spec().tie_word_embeddings;
}

bool ModelPlan::resident_source() const {
    if (request_.fp8 || (request_.finetuning_type == config::FinetuningType::full && request_.trains)) return true;
    const auto& all = file_->tensors.all();
    const bool any_4bit = std::any_of(all.begin(), all.end(), [&](const formats::TensorSource& source) {
        return source.rule.role == spec::TensorRole::linear && (source.quantised() || quantises(source));
    });
    return request_.device.is_cuda() && (!any_4bit || expands_4bit());
}

/// Whether products of the fewest tokens that the run has (generation: one) read tiles in every group: expanding tiles
/// is slower than expanding rows, so that a layer must not need both.
bool ModelPlan::tiles_serve() const {
    if (!request_.nf4_chooser || resident_source()) return false;
    const int64_t tokens = request_.fewest_tokens > 0 ? request_.fewest_tokens : request_.sizes.tokens;
    const auto serves = [&](const GroupLayout& group, bool transposed) {
        return request_.nf4_chooser(tokens, group.n, group.k, transposed).kernel !=
               ops::Nf4GemmChoice::Kernel::dequantize;
    };
    return std::all_of(std::begin(all_groups), std::end(all_groups), [&](Group g) {
        return serves(layout_[g], false) && (!request_.trains || serves(layout_[g], true));
    });
}

bool ModelPlan::lies_in_tiles(const formats::TensorSource& source) const {
    if (!tiles_serve()) return false;
    if (source.quantised()) return spec::nf4_tiles_supported(source.quant4->view);
    return quantises(source) && source.rows() % spec::nf4_tile == 0 && source.cols() % spec::nf4_tile == 0;
}

ModelPlan::Held ModelPlan::held(const formats::TensorSource& source) const {
    if (lies_in_tiles(source)) return Held::tiles;
    if (source.quantised()) return request_.device.is_cpu() ? Held::file_map : Held::packed;
    if (quantises(source) && request_.finetuning_type == config::FinetuningType::lora) return Held::quantised_here;
    if (source.int8) return Held::matrix;
    return request_.device.is_cpu() ? Held::file_map : Held::matrix;
}

void ModelPlan::plan_linear(const formats::TensorSource& source) {
    const std::string& name = source.rule.hf_name;
    const Held how = held(source);
    if (how == Held::file_map || resident_source()) return;
    const int64_t elements = source.rows() * source.cols(),
                  blocks = (elements + spec::quant4_block - 1) / spec::quant4_block;
    const auto add = [&](const char* what, int64_t bytes) {
        resident_.add("base weights", part_name(name, what), bytes);
    };
    if (how == Held::matrix) {
        add("matrix", elements * static_cast<int64_t>(c10::elementSize(matrix_type(source))));
        return;
    }
    const bool nested = how != Held::packed || source.quant4->view.nested();
    if (how == Held::tiles) {
        add("tiles", spec::nf4_tiles_bytes(source.rows(), source.cols()));
    } else {
        add("packed", (elements + 1) / 2);
        add("absmax", nested ? blocks : blocks * 4);
    }
    if (nested) add("nested absmax", (blocks + spec::quant4_nested_block - 1) / spec::quant4_nested_block * 4);
    add("tables", (16 + 256) * 4);
}

void ModelPlan::plan_resident() {
    resident_ = memory::Plan();
    const auto item = static_cast<int64_t>(c10::elementSize(request_.dtype));
    if (request_.fp8) {
        Fp8Source::plan(spec(), layout_, request_.dtype, resident_);
    } else if (resident_source()) {
        ResidentSource::plan(spec(), layout_, request_.dtype, resident_);
    }
    const bool masters = table_ && request_.finetuning_type == config::FinetuningType::full;
    for (const formats::TensorSource& source : file_->tensors.all()) {
        const spec::TensorRule& rule = source.rule;
        const int64_t elements = source.rows() * source.cols();
        switch (rule.role) {
            case spec::TensorRole::linear:
                plan_linear(source);
                break;
            case spec::TensorRole::bias:
                break;  // joined by group below
            case spec::TensorRole::embed_tokens:
            case spec::TensorRole::lm_head:
                // fp32 masters are read in place; everything else needs a copy in the compute type on the device.
                if (masters && request_.dtype == at::kFloat) break;
                if (rule.role == spec::TensorRole::embed_tokens && embedding_on_host()) break;  // in the host's plan
                resident_.add("embeddings", rule.hf_name, elements * item);
                break;
            default:
                if (!masters) resident_.add("norms", rule.hf_name, elements * 4);
        }
    }
    for (int64_t layer = 0; layer < spec().num_layers; ++layer)
        for (const Group g : all_groups)
            if (std::any_of(layout_[g].slices.begin(), layout_[g].slices.end(),
                            [&](const Slice& s) { return spec().has_bias(s.projection); }))
                resident_.add("biases", cat("bias ", layer, " ", name_of(g)), layout_[g].n * item);
    if (request_.lora && spec().tie_word_embeddings && !request_.lora->modules_to_save.empty())
        resident_.add("embeddings", "lm_head copy", spec().vocab_size * spec().hidden_size * item);
    if (table_) Parameters::plan(*table_, request_.optim, request_.trains, resident_);
    if (!lora_layers_.empty()) AdapterMargins::plan(layout_, lora_layers_, request_.device, request_.fp8, resident_);
    if (!resident_source()) ScratchSource::plan(layout_, request_.dtype, resident_);
    resident_.place();
}

std::string ModelPlan::resident_fingerprint() const {
    ContentHash hash;
    for (const memory::Entry& entry : resident_.entries()) hash.add_field(cat(entry.name, " ", entry.bytes));
    return hash.hex();
}

void ModelPlan::set_sizes(const ActivationSizes& sizes) {
    request_.sizes = sizes;
    request_.sizes.training = request_.trains;
    request_.sizes.fp8 = request_.fp8;
    request_.sizes.dropout = request_.trains && request_.lora && request_.lora->lora_dropout > 0;
    request_.sizes.trains_embedding =
        request_.trains && table_ &&
        table_->find(spec::TensorRole::embed_tokens, -1, spec::Projection::q, Parameter::Kind::base) != nullptr;
    step_ = host_ = memory::Plan();
    Activations::plan(spec(), layout_, request_.sizes, request_.dtype, request_.device, step_, host_);
    if (embedding_on_host()) {
        const formats::TensorSource& embed = file_->tensors.of(spec::TensorRole::embed_tokens);
        host_.add("embeddings", embed.rule.hf_name,
                  embed.rows() * embed.cols() * static_cast<int64_t>(c10::elementSize(request_.dtype)));
    }
    if (request_.saves && table_) Parameters::plan_copies(*table_, request_.optim, host_);
    step_.place();
    host_.place();
}

void ModelPlan::set_weight_cache(bool on) {
    request_.weight_cache = on;
    plan_resident();
}

int64_t ModelPlan::recorded_bytes() const {
    if (!request_.records || !request_.device.is_cuda()) return 0;
    return static_cast<int64_t>(recorded_shapes) * request_.sizes.in_flight * spec().num_layers * recorded_layer_bytes;
}

std::string ModelPlan::table_text() const {
    const std::string host = host_.entries().empty() ? "" : cat("\nin host memory\n", host_.table());
    const std::string beside = request_.device.is_cpu() ? ""
                                                        : cat("\nscalars, and what the allocator rounds up ",
                                                              memory::human_bytes(memory::beside_arenas_bytes));
    const std::string recorded =
        recorded_bytes() > 0 ? cat("\nrecorded passes (CUDA graphs), estimated ", memory::human_bytes(recorded_bytes()))
                             : "";
    return cat("resident\n", resident_.table(), "\nper step\n", step_.table(), host, beside, recorded, "\nin all ",
               memory::human_bytes(total_bytes()));
}

std::string ModelPlan::base_description() const {
    const int64_t quantised = file_->tensors.quantised_linears();
    const std::string expanded = request_.fp8 ? ", held in fp8 (e4m3, a scale for each row)"
                                 : expands_4bit()
                                     ? cat(", expanded to ", c10::toString(request_.dtype), " while loading")
                                     : "";
    if (quantised > 0) return cat(quantised, " linears in 4 bit as they lie", expanded);
    if (const int64_t int8 = file_->tensors.int8_linears(); int8 > 0)
        return cat(int8, " linears in 8 bit, dequantised to ",
                   request_.fp8 ? "fp8 (e4m3, a scale for each row)" : c10::toString(request_.dtype), " while loading");
    if (request_.finetuning_type == config::FinetuningType::full)
        return cat("fp32 masters, compute ", c10::toString(request_.dtype));
    return request_.load_in_4bit ? cat("NF4 (double quantised), quantised while loading", expanded)
                                 : cat("kept in 16/32 bit", expanded);
}

}  // namespace unsloth::model
