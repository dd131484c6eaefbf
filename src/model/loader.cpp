#include "unsloth/model/loader.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "unsloth/core/error.h"
#include "unsloth/core/parallel.h"
#include "unsloth/core/philox.h"
#include "unsloth/model/fp8_source.h"
#include "unsloth/ops/fp8.h"
#include "unsloth/spec/convert.h"

namespace unsloth::model {
namespace {

std::string part(const std::string& tensor, const char* name) { return cat(tensor, " ", name); }

/// The bytes of a mapped tensor as an ATen tensor on the CPU; a copy where they are not aligned for their type.
at::Tensor mapped_tensor(const TensorView& view) {
    const at::ScalarType type = scalar_type(view.dtype);
    void* const data = const_cast<std::byte*>(view.data.data());
    if (view.is_aligned(c10::elementSize(type))) return at::from_blob(data, view.shape, type);
    const at::Tensor copy = at::empty(view.shape, type);
    std::memcpy(copy.data_ptr(), data, view.data.size());
    return copy;
}

/// A weight's values as a matrix on the CPU: mapped as it lies, or an INT8 weight's dequantised in `dtype`.
at::Tensor matrix_of(const TensorSource& source, at::ScalarType dtype) {
    if (!source.int8) return mapped_tensor(*source.tensor);
    const at::Tensor values = at::empty(source.rule.shape, at::kFloat);
    parallel_ranges(source.rows(), 64, [&](int64_t begin, int64_t end) { source.read_f32(begin, end, values.data_ptr<float>() + begin * source.cols()); });
    return values.to(dtype);
}

template <class T>
at::Tensor host_array(const T* data, int64_t count, at::ScalarType type) {
    return at::from_blob(const_cast<T*>(data), {count}, type);
}

/// Uniform in [-bound, bound] from the counter (seed, tensor's index, element): the same on any machine.
void fill_uniform(float* out, int64_t count, float bound, uint64_t seed, uint32_t tensor) {
    for (int64_t i = 0; i < count; i += 4) {
        const PhiloxWords words = philox4x32(static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
                                             static_cast<uint32_t>(i / 4), static_cast<uint32_t>((i / 4) >> 32), tensor, 0x10A);
        for (int64_t j = i; j < std::min(count, i + 4); ++j) out[j] = (2.0F * unit_float(words.w[j - i]) - 1.0F) * bound;
    }
}

}  // namespace

at::ScalarType scalar_type(DType type) {
    switch (type) {
        case DType::f32: return at::kFloat;
        case DType::bf16: return at::kBFloat16;
        case DType::f16: return at::kHalf;
        case DType::f64: return at::kDouble;
        case DType::i64: return at::kLong;
        case DType::i32: return at::kInt;
        case DType::i16: return at::kShort;
        case DType::i8: return at::kChar;
        case DType::u8: return at::kByte;
        case DType::boolean: return at::kBool;
        case DType::f8_e4m3: return at::kFloat8_e4m3fn;
        case DType::f8_e5m2: return at::kFloat8_e5m2;
    }
    throw CheckError("no such dtype");
}

// --- planning ------------------------------------------------------------------------------------------------------

ModelPlan::ModelPlan(std::shared_ptr<const WeightFile> file, LoadRequest request) : file_(std::move(file)), request_(std::move(request)) {
    const bool full = request_.finetuning_type == FinetuningType::full;
    if (full && file_->tensors.quantised_linears() + file_->tensors.int8_linears() > 0)
        throw usage_error(cat(file_->checkpoint.folder().string(), ": finetuning_type full needs 16/32-bit weights, these are ", file_->tensors.int8_linears() > 0 ? "8-bit" : "4-bit"),
                          "Point model.path at the unquantised checkpoint, or use finetuning_type lora.");
    if (request_.adapter) {
        adapter_ = std::make_shared<const Adapter>(read_adapter(*request_.adapter, spec()));
        const double dropout = request_.lora ? request_.lora->lora_dropout : adapter_->config.lora.lora_dropout;
        request_.lora = adapter_->config.lora;
        request_.lora->lora_dropout = dropout;
    }
    if (full && request_.trains) {
        table_ = ParameterTable::full(spec());
    } else if (request_.lora) {
        lora_layers_ = resolve_lora(*request_.lora, spec());
        table_ = ParameterTable::lora(spec(), lora_layers_, request_.lora->modules_to_save);
    }
    layout_ = make_layout(spec(), lora_layers_);
    if (request_.fp8) require_fp8();
    plan_resident();
    set_sizes(request_.sizes);
}

void ModelPlan::require_fp8() const {
    const auto refuse = [](const std::string& what, const char* advice) { throw usage_error("model.compute_dtype fp8 " + what, advice); };
    if (request_.finetuning_type == FinetuningType::full && request_.trains)
        refuse("is for a frozen base", "Train adapters (lora.finetuning_type lora), or leave compute_dtype out.");
    if (!ops::fp8_available(request_.device)) refuse(cat("needs compute capability 8.9; ", request_.device.str(), " has less"), "Leave compute_dtype out.");
    if (request_.device.is_cuda() && request_.dtype != at::kBFloat16) refuse("goes with dtype bfloat16 on a GPU", "Set model.dtype to bfloat16.");
    for (const Group g : all_groups)
        if (layout_[g].n % 16 != 0 || layout_[g].k % 16 != 0)
            refuse(cat("needs sizes that are multiples of 16; ", name_of(g), " is ", layout_[g].n, " x ", layout_[g].k), "Leave compute_dtype out.");
}

/// Weights of 8 bit stay what they are: to quantise them a second time would lose twice.
bool ModelPlan::quantises(const TensorSource& source) const { return request_.load_in_4bit && !source.quantised() && !source.int8; }

at::ScalarType ModelPlan::matrix_type(const TensorSource& source) const { return source.int8 ? request_.dtype : scalar_type(source.tensor->dtype); }

bool ModelPlan::expands_4bit() const { return request_.device.is_cuda() && request_.weight_cache; }

bool ModelPlan::embedding_on_host() const {
    const bool trained = table_ && table_->find(TensorRole::embed_tokens, -1, Projection::q, Parameter::Kind::base) != nullptr;
    return request_.device.is_cuda() && request_.offload_embedding && !trained && !spec().tie_word_embeddings;
}

bool ModelPlan::resident_source() const {
    if (request_.fp8 || (request_.finetuning_type == FinetuningType::full && request_.trains)) return true;
    const auto& all = file_->tensors.all();
    const bool any_4bit = std::any_of(all.begin(), all.end(), [&](const TensorSource& source) { return source.rule.role == TensorRole::linear && (source.quantised() || quantises(source)); });
    return request_.device.is_cuda() && (!any_4bit || expands_4bit());
}

/// Whether products of the fewest tokens that the run has (generation: one) read tiles in every group: expanding tiles is slower than
/// expanding rows, so that a layer must not need both.
bool ModelPlan::tiles_serve() const {
    if (!request_.nf4_chooser || resident_source()) return false;
    const int64_t tokens = request_.fewest_tokens > 0 ? request_.fewest_tokens : request_.sizes.tokens;
    const auto serves = [&](const GroupLayout& group, bool transposed) {
        return request_.nf4_chooser(tokens, group.n, group.k, transposed).kernel != ops::Nf4GemmChoice::Kernel::dequantize;
    };
    return std::all_of(std::begin(all_groups), std::end(all_groups), [&](Group g) {
        return serves(layout_[g], false) && (!request_.trains || serves(layout_[g], true));
    });
}

bool ModelPlan::lies_in_tiles(const TensorSource& source) const {
    if (!tiles_serve()) return false;
    if (source.quantised()) return nf4_tiles_supported(source.quant4->view);
    return quantises(source) && source.rows() % nf4_tile == 0 && source.cols() % nf4_tile == 0;
}

ModelPlan::Held ModelPlan::held(const TensorSource& source) const {
    if (lies_in_tiles(source)) return Held::tiles;
    if (source.quantised()) return request_.device.is_cpu() ? Held::file_map : Held::packed;
    if (quantises(source) && request_.finetuning_type == FinetuningType::lora) return Held::quantised_here;
    if (source.int8) return Held::matrix;
    return request_.device.is_cpu() ? Held::file_map : Held::matrix;
}

void ModelPlan::plan_linear(const TensorSource& source) {
    const std::string& name = source.rule.hf_name;
    const Held how = held(source);
    if (how == Held::file_map || resident_source()) return;
    const int64_t elements = source.rows() * source.cols(), blocks = (elements + quant4_block - 1) / quant4_block;
    const auto add = [&](const char* what, int64_t bytes) { resident_.add("base weights", part(name, what), bytes); };
    if (how == Held::matrix) {
        add("matrix", elements * static_cast<int64_t>(c10::elementSize(matrix_type(source))));
        return;
    }
    const bool nested = how != Held::packed || source.quant4->view.nested();
    if (how == Held::tiles) {
        add("tiles", nf4_tiles_bytes(source.rows(), source.cols()));
    } else {
        add("packed", (elements + 1) / 2);
        add("absmax", nested ? blocks : blocks * 4);
    }
    if (nested) add("nested absmax", (blocks + quant4_nested_block - 1) / quant4_nested_block * 4);
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
    const bool masters = table_ && request_.finetuning_type == FinetuningType::full;
    for (const TensorSource& source : file_->tensors.all()) {
        const TensorRule& rule = source.rule;
        const int64_t elements = source.rows() * source.cols();
        switch (rule.role) {
            case TensorRole::linear: plan_linear(source); break;
            case TensorRole::bias: break;  // joined by group below
            case TensorRole::embed_tokens:
            case TensorRole::lm_head:
                // fp32 masters are read in place; everything else needs a copy in the compute type on the device.
                if (masters && request_.dtype == at::kFloat) break;
                if (rule.role == TensorRole::embed_tokens && embedding_on_host()) break;  // in the host's plan
                resident_.add("embeddings", rule.hf_name, elements * item);
                break;
            default:
                if (!masters) resident_.add("norms", rule.hf_name, elements * 4);
        }
    }
    for (int64_t layer = 0; layer < spec().num_layers; ++layer)
        for (const Group g : all_groups)
            if (std::any_of(layout_[g].slices.begin(), layout_[g].slices.end(), [&](const Slice& s) { return spec().has_bias(s.projection); }))
                resident_.add("biases", cat("bias ", layer, " ", name_of(g)), layout_[g].n * item);
    if (request_.lora && spec().tie_word_embeddings && !request_.lora->modules_to_save.empty())
        resident_.add("embeddings", "lm_head copy", spec().vocab_size * spec().hidden_size * item);
    if (table_) Parameters::plan(*table_, request_.optim, request_.trains, resident_);
    if (!lora_layers_.empty()) AdapterMargins::plan(layout_, lora_layers_, request_.device, request_.fp8, resident_);
    if (!resident_source()) ScratchSource::plan(layout_, request_.dtype, resident_);
    resident_.place();
}

void ModelPlan::set_sizes(const ActivationSizes& sizes) {
    request_.sizes = sizes;
    request_.sizes.training = request_.trains;
    request_.sizes.fp8 = request_.fp8;
    request_.sizes.dropout = request_.trains && request_.lora && request_.lora->lora_dropout > 0;
    request_.sizes.trains_embedding =
        request_.trains && table_ && table_->find(TensorRole::embed_tokens, -1, Projection::q, Parameter::Kind::base) != nullptr;
    step_ = host_ = memory::Plan();
    Activations::plan(spec(), layout_, request_.sizes, request_.dtype, request_.device, step_, host_);
    if (embedding_on_host()) {
        const TensorSource& embed = file_->tensors.of(TensorRole::embed_tokens);
        host_.add("embeddings", embed.rule.hf_name, embed.rows() * embed.cols() * static_cast<int64_t>(c10::elementSize(request_.dtype)));
    }
    step_.place();
    host_.place();
}

void ModelPlan::set_weight_cache(bool on) {
    request_.weight_cache = on;
    plan_resident();
}

std::string ModelPlan::table_text() const {
    const std::string host = host_.entries().empty() ? "" : cat("\nin host memory\n", host_.table());
    return cat("resident\n", resident_.table(), "\nper step\n", step_.table(), host, "\nin all ", memory::human_bytes(total_bytes()));
}

std::string ModelPlan::base_description() const {
    const int64_t quantised = file_->tensors.quantised_linears();
    const std::string expanded = request_.fp8 ? ", held in fp8 (e4m3, a scale for each row)" : expands_4bit() ? cat(", expanded to ", c10::toString(request_.dtype), " while loading") : "";
    if (quantised > 0) return cat(quantised, " linears in 4 bit as they lie", expanded);
    if (const int64_t int8 = file_->tensors.int8_linears(); int8 > 0)
        return cat(int8, " linears in 8 bit, dequantised to ", request_.fp8 ? "fp8 (e4m3, a scale for each row)" : c10::toString(request_.dtype), " while loading");
    if (request_.finetuning_type == FinetuningType::full) return cat("fp32 masters, compute ", c10::toString(request_.dtype));
    return request_.load_in_4bit ? cat("NF4 (double quantised), quantised while loading", expanded) : cat("kept in 16/32 bit", expanded);
}

// --- loading -------------------------------------------------------------------------------------------------------

StoredWeight ModelPlan::load_linear(ops::Context& ctx, const memory::Arena& arena, const TensorSource& source) const {
    const std::string& name = source.rule.hf_name;
    const Held how = held(source);
    if (how == Held::file_map && !source.quantised()) return mapped_tensor(*source.tensor);
    const auto buffer = [&](const char* what, at::ScalarType type) {
        const memory::BufferId id = arena.plan().find(part(name, what));
        return arena.tensor(id, {arena.plan().entry(id).bytes / static_cast<int64_t>(c10::elementSize(type))}, type);
    };
    if (how == Held::matrix) {
        const at::Tensor matrix = buffer("matrix", matrix_type(source)).view(source.rule.shape);
        matrix.copy_(matrix_of(source, matrix_type(source)));
        source.drop();
        return matrix;
    }
    const auto keep = [&](at::Tensor& part_of, const char* what) {
        const at::Tensor to = buffer(what, part_of.scalar_type());
        to.copy_(part_of.view({-1}));
        part_of = to;
    };
    if (how == Held::tiles) {
        ops::Nf4Tiles kept = ops::make_nf4_tiles(ctx, std::get<ops::Quant4Tensor>(frozen_weight(ctx, source)));
        keep(kept.tiles, "tiles");
        keep(kept.nested_absmax, "nested absmax");
        keep(kept.tables, "tables");
        source.drop();
        return kept;
    }
    if (how == Held::quantised_here) {
        ops::Quant4Tensor kept = ops::quantize_nf4(ctx, mapped_tensor(*source.tensor).to(ctx.device()));
        keep(kept.packed, "packed");
        keep(kept.absmax, "absmax");
        keep(kept.nested_absmax, "nested absmax");
        keep(kept.tables, "tables");
        source.drop();
        return kept;
    }
    const Quant4View& view = source.quant4->view;
    const bool on_device = how == Held::packed;
    const int64_t blocks = view.blocks(), nested_blocks = (blocks + quant4_nested_block - 1) / quant4_nested_block;
    const auto place = [&](const char* what, const at::Tensor& host) {
        if (!on_device) return host;
        const at::Tensor to = buffer(what, host.scalar_type());
        to.copy_(host);
        return to;
    };
    ops::Quant4Tensor stored;
    stored.rows = view.rows;
    stored.cols = view.cols;
    stored.nested_offset = view.nested_offset;
    stored.packed = place("packed", host_array(view.packed, (view.elements() + 1) / 2, at::kByte));
    stored.absmax = place("absmax", view.nested() ? host_array(view.absmax_u8, blocks, at::kByte) : host_array(view.absmax_f32, blocks, at::kFloat));
    if (view.nested()) stored.nested_absmax = place("nested absmax", host_array(view.nested_absmax, nested_blocks, at::kFloat));
    at::Tensor tables = at::zeros({16 + 256}, at::kFloat);
    tables.narrow(0, 0, 16).copy_(host_array(view.code, 16, at::kFloat));
    if (view.nested()) tables.narrow(0, 16, 256).copy_(host_array(view.nested_map, 256, at::kFloat));
    stored.tables = place("tables", tables);
    if (on_device) source.drop();
    return stored;
}

at::Tensor ModelPlan::load_vector(const memory::Arena& arena, const TensorSource* source) const {
    if (source == nullptr) return {};
    const at::Tensor values = at::empty({source->cols()}, at::kFloat);
    source->read_f32(values.data_ptr<float>());
    const at::Tensor out = arena.tensor(arena.plan().find(source->rule.hf_name), {source->cols()}, at::kFloat);
    return out.copy_(values);
}

at::Tensor ModelPlan::load_bias(const memory::Arena& arena, int layer, Group g) const {
    const GroupLayout& group = layout_[g];
    if (std::none_of(group.slices.begin(), group.slices.end(), [&](const Slice& s) { return spec().has_bias(s.projection); })) return {};
    const at::Tensor joined = at::zeros({group.n}, at::kFloat);
    for (const Slice& slice : group.slices)
        if (const TensorSource* bias = file_->tensors.bias(layer, slice.projection)) bias->read_f32(joined.data_ptr<float>() + slice.n_begin);
    return arena.tensor(arena.plan().find(cat("bias ", layer, " ", name_of(g))), {group.n}, request_.dtype).copy_(joined);
}

std::vector<StoredLayer> ModelPlan::load_layers(ops::Context& ctx, const memory::Arena& arena) const {
    const bool masters = request_.finetuning_type == FinetuningType::full && request_.trains;
    std::vector<StoredLayer> layers(static_cast<std::size_t>(spec().num_layers));
    for (int layer = 0; layer < static_cast<int>(spec().num_layers); ++layer) {
        StoredLayer& stored = layers[static_cast<std::size_t>(layer)];
        for (const Group g : all_groups) stored.biases[static_cast<std::size_t>(g)] = load_bias(arena, layer, g);
        if (!resident_source())
            for (int p = 0; p < projection_count; ++p)
                stored.projections[static_cast<std::size_t>(p)] = load_linear(ctx, arena, file_->tensors.linear(layer, static_cast<Projection>(p)));
        if (masters) continue;  // norms are read from the fp32 masters
        stored.input_norm_D = load_vector(arena, &file_->tensors.of(TensorRole::input_norm, layer));
        stored.post_norm_D = load_vector(arena, &file_->tensors.of(TensorRole::post_norm, layer));
        if (spec().qk_norm) {
            stored.q_norm_d = load_vector(arena, &file_->tensors.of(TensorRole::q_norm, layer));
            stored.k_norm_d = load_vector(arena, &file_->tensors.of(TensorRole::k_norm, layer));
        }
    }
    return layers;
}

OuterWeights ModelPlan::load_outer(const memory::Arena& arena, const memory::Arena* host, const Parameters* parameters) const {
    const bool masters = request_.finetuning_type == FinetuningType::full && request_.trains;
    const auto matrix = [&](const TensorSource& source, const std::string& buffer, const memory::Arena& arena) {
        if (masters && request_.dtype == at::kFloat) return parameters->value(*parameters->table().find(source.rule.role, -1, Projection::q, Parameter::Kind::base));
        const at::Tensor out = arena.tensor(arena.plan().find(buffer), source.rule.shape, request_.dtype);
        out.copy_(mapped_tensor(*source.tensor));
        source.drop();
        return out;
    };
    const TensorSource &embed = file_->tensors.of(TensorRole::embed_tokens), &head = file_->tensors.head();
    OuterWeights outer;
    outer.embed_VD = matrix(embed, embed.rule.hf_name, embedding_on_host() ? *host : arena);
    const bool tied = &embed == &head;
    // Trained apart from each other (modules_to_save), tied matrices become two.
    const bool untied = tied && request_.lora && !request_.lora->modules_to_save.empty();
    outer.lm_head_VD = !tied ? matrix(head, head.rule.hf_name, arena) : untied ? matrix(embed, "lm_head copy", arena) : outer.embed_VD;
    outer.final_norm_D = masters ? parameters->value(*parameters->table().find(TensorRole::final_norm, -1, Projection::q, Parameter::Kind::base))
                                 : load_vector(arena, &file_->tensors.of(TensorRole::final_norm));
    return outer;
}

void ModelPlan::initialise(Parameters& parameters) const {
    uint32_t index = 0;
    for (const Parameter& p : parameters.table().parameters()) {
        const at::Tensor values = at::zeros(p.shape, at::kFloat);
        float* const out = values.data_ptr<float>();
        if (adapter_) {
            convert_to_f32(adapter_->file.at(p.name).dtype, adapter_->file.at(p.name).data.data(), p.elements(), out);
        } else if (p.kind == Parameter::Kind::lora_a) {
            fill_uniform(out, p.elements(), 1.0F / std::sqrt(static_cast<float>(p.shape[1])), request_.seed, index);
        } else if (p.kind == Parameter::Kind::base) {
            const TensorSource* source = p.role == TensorRole::lm_head && request_.lora ? &file_->tensors.head() : nullptr;
            if (source == nullptr && request_.lora) source = &file_->tensors.of(p.role);
            if (source == nullptr) source = file_->tensors.find(p.name);
            source->read_f32(out);
            source->drop();
        }
        parameters.value(p).copy_(values);
        ++index;
    }
}

/// Norms of a model that is trained as a whole are read from its fp32 masters.
void ModelPlan::lend_master_norms(const Parameters& parameters, std::vector<StoredLayer>& layers) const {
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
        const auto master = [&](TensorRole role) {
            const Parameter* p = parameters.table().find(role, static_cast<int>(layer), Projection::q, Parameter::Kind::base);
            return p == nullptr ? at::Tensor() : parameters.value(*p);
        };
        layers[layer].input_norm_D = master(TensorRole::input_norm);
        layers[layer].post_norm_D = master(TensorRole::post_norm);
        layers[layer].q_norm_d = master(TensorRole::q_norm);
        layers[layer].k_norm_d = master(TensorRole::k_norm);
    }
}

/// A frozen projection with the values that the run trains on: 4-bit on the device where it is, or becomes, 4-bit; else as it lies.
StoredWeight ModelPlan::frozen_weight(ops::Context& ctx, const TensorSource& linear) const {
    if (linear.quantised()) return ops::upload(ctx, linear.quant4->view);
    const at::Tensor matrix = matrix_of(linear, matrix_type(linear));
    if (quantises(linear)) return ops::quantize_nf4(ctx, matrix.to(ctx.device()));
    return matrix;
}

/// A group's projections as one matrix of the compute type on the device, with the values that their stored form stands for.
at::Tensor ModelPlan::joined_group(ops::Context& ctx, int layer, Group g) const {
    const at::Tensor joined = at::empty({layout_[g].n, layout_[g].k}, at::TensorOptions().dtype(request_.dtype).device(ctx.device()));
    for (const Slice& slice : layout_[g].slices) {
        const TensorSource& linear = file_->tensors.linear(layer, slice.projection);
        expand(ctx, frozen_weight(ctx, linear), joined.narrow(0, slice.n_begin, slice.n));
        linear.drop();
    }
    return joined;
}

std::unique_ptr<WeightSource> ModelPlan::make_source(ops::Context& ctx, std::vector<StoredLayer> layers, const memory::Arena& arena, const Adapters* adapters,
                                                     const Parameters* masters) const {
    if (!resident_source()) return std::make_unique<ScratchSource>(ctx, layout_, request_.dtype, std::move(layers), arena, adapters, request_.nf4_chooser, request_.trains);
    if (request_.fp8) {
        auto source = std::make_unique<Fp8Source>(ctx, spec(), layout_, request_.dtype, std::move(layers), arena, adapters);
        for (int layer = 0; layer < static_cast<int>(spec().num_layers); ++layer)
            for (const Group g : all_groups) source->load(ctx, layer, g, joined_group(ctx, layer, g));
        return source;
    }
    auto source = std::make_unique<ResidentSource>(ctx, spec(), layout_, request_.dtype, std::move(layers), arena, adapters, masters);
    if (masters != nullptr) return source;
    for (const TensorSource& linear : file_->tensors.all()) {
        if (linear.rule.role != TensorRole::linear) continue;
        source->load(ctx, linear.rule.layer, linear.rule.projection, frozen_weight(ctx, linear));
        linear.drop();
    }
    return source;
}

ModelParts ModelPlan::load(ops::Context& ctx) const {
    ModelParts parts;
    parts.file = file_;
    parts.spec = spec();
    parts.layout = layout_;
    parts.dtype = request_.dtype;
    parts.lora = lora_layers_;
    parts.lora_dropout = request_.trains && request_.lora ? request_.lora->lora_dropout : 0.0;
    parts.full_finetuning = request_.finetuning_type == FinetuningType::full && request_.trains;
    parts.records = request_.records;
    parts.resident_memory = std::make_unique<memory::Arena>(resident_, request_.device);
    const memory::Arena& arena = *parts.resident_memory;
    if (table_) {
        parts.parameters = std::make_unique<Parameters>(*table_, request_.optim, request_.trains, arena);
        initialise(*parts.parameters);
    }
    if (!lora_layers_.empty()) parts.adapters = std::make_unique<Adapters>(*parts.parameters, lora_layers_);
    std::vector<StoredLayer> layers = load_layers(ctx, arena);
    if (parts.full_finetuning) lend_master_norms(*parts.parameters, layers);
    parts.source = make_source(ctx, std::move(layers), arena, parts.adapters.get(), parts.full_finetuning ? parts.parameters.get() : nullptr);
    if (!host_.entries().empty()) parts.host_memory = std::make_unique<memory::Arena>(memory::Arena::host(host_, request_.device));
    parts.outer = load_outer(arena, parts.host_memory.get(), parts.parameters.get());
    parts.step_memory = std::make_unique<memory::Arena>(step_, request_.device);
    parts.activations =
        std::make_unique<Activations>(spec(), layout_, request_.sizes, request_.dtype, *parts.step_memory, parts.host_memory.get());
    return parts;
}

}  // namespace unsloth::model
