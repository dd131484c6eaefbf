// ModelPlan::load: from the mapped files to where the plan wants the values.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/shared_loading.h"
#include "unsloth/core/error.h"
#include "unsloth/core/parallel.h"
#include "unsloth/core/philox.h"
#include "unsloth/model/fp8_source.h"
#include "unsloth/model/loader.h"
#include "unsloth/spec/convert.h"

namespace unsloth::model {
namespace {

/// The bytes of a mapped tensor as an ATen tensor on the CPU; a copy where they are not aligned for their type.
at::Tensor mapped_tensor(const formats::TensorView& view) {
    const at::ScalarType type = scalar_type(view.dtype);
    void* const data = const_cast<std::byte*>(view.data.data());
    if (view.is_aligned(c10::elementSize(type))) return at::from_blob(data, view.shape, type);
    const at::Tensor copy = at::empty(view.shape, type);
    std::memcpy(copy.data_ptr(), data, view.data.size());
    return copy;
}

/// A weight's values as a matrix on the CPU: mapped as it lies, or an INT8 weight's dequantised in `dtype`.
at::Tensor matrix_of(const formats::TensorSource& source, at::ScalarType dtype) {
    if (!source.int8) return mapped_tensor(*source.tensor);
    const at::Tensor values = at::empty(source.rule.shape, at::kFloat);
    parallel_ranges(source.rows(), 64, [&](int64_t begin, int64_t end) {
        source.read_f32(begin, end, values.data_ptr<float>() + begin * source.cols());
    });
    return values.to(dtype);
}

template <class T>
at::Tensor host_array(const T* data, int64_t count, at::ScalarType type) {
    return at::from_blob(const_cast<T*>(data), {count}, type);
}

/// Uniform in [-bound, bound] from the counter (seed, tensor's index, element): the same on any machine.
void fill_uniform(float* out, int64_t count, float bound, uint64_t seed, uint32_t tensor) {
    for (int64_t i = 0; i < count; i += 4) {
        const PhiloxWords words =
            philox4x32(static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), static_cast<uint32_t>(i / 4),
                       static_cast<uint32_t>((i / 4) >> 32), tensor, 0x10A);
        for (int64_t j = i; j < std::min(count, i + 4); ++j)
            out[j] = (2.0F * unit_float(words.w[j - i]) - 1.0F) * bound;
    }
}

}  // namespace

/// Where a projection lies; with `reads` its values, too.
StoredWeight ModelPlan::load_linear(ops::Context& ctx, const memory::Arena& arena, const formats::TensorSource& source,
                                    bool reads) const {
    const Held how = held(source);
    if (how == Held::file_map && !source.quantised()) return mapped_tensor(*source.tensor);
    const auto keep = [&](const char* what, at::ScalarType type, const at::Tensor& values) {
        const memory::BufferId id = arena.plan().find(part_name(source.rule.hf_name, what));
        const at::Tensor to =
            arena.tensor(id, {arena.plan().entry(id).bytes / static_cast<int64_t>(c10::elementSize(type))}, type);
        if (reads) to.copy_(values.view({-1}));
        return to;
    };
    if (how == Held::file_map || how == Held::packed)
        return load_packed(source, how == Held::packed ? PlacePart(keep) : nullptr);
    StoredWeight stored;
    if (how == Held::matrix) {
        const at::ScalarType type = matrix_type(source);
        stored = keep("matrix", type, reads ? matrix_of(source, type) : at::Tensor()).view(source.rule.shape);
    } else if (how == Held::tiles) {
        ops::Nf4Tiles made;
        if (reads) made = ops::make_nf4_tiles(ctx, std::get<ops::Quant4Tensor>(frozen_weight(ctx, source)));
        stored = ops::Nf4Tiles{keep("tiles", at::kByte, made.tiles),
                               keep("nested absmax", at::kFloat, made.nested_absmax),
                               keep("tables", at::kFloat, made.tables),
                               made.nested_offset,
                               source.rows(),
                               source.cols()};
    } else {
        ops::Quant4Tensor made;
        if (reads) made = ops::quantize_nf4(ctx, mapped_tensor(*source.tensor).to(ctx.device()));
        stored = ops::Quant4Tensor{keep("packed", at::kByte, made.packed),
                                   keep("absmax", at::kByte, made.absmax),
                                   keep("nested absmax", at::kFloat, made.nested_absmax),
                                   keep("tables", at::kFloat, made.tables),
                                   made.nested_offset,
                                   source.rows(),
                                   source.cols()};
    }
    if (reads) source.drop();
    return stored;
}

/// A 4-bit weight of the checkpoint: in the file's map, or where `keep` puts its parts.
StoredWeight ModelPlan::load_packed(const formats::TensorSource& source, const PlacePart& keep) const {
    const spec::Quant4View& view = source.quant4->view;
    const int64_t blocks = view.blocks(),
                  nested_blocks = (blocks + spec::quant4_nested_block - 1) / spec::quant4_nested_block;
    const auto place = [&](const char* what, const at::Tensor& host) {
        return keep ? keep(what, host.scalar_type(), host) : host;
    };
    ops::Quant4Tensor stored;
    stored.rows = view.rows;
    stored.cols = view.cols;
    stored.nested_offset = view.nested_offset;
    stored.packed = place("packed", host_array(view.packed, (view.elements() + 1) / 2, at::kByte));
    stored.absmax = place("absmax", view.nested() ? host_array(view.absmax_u8, blocks, at::kByte)
                                                  : host_array(view.absmax_f32, blocks, at::kFloat));
    if (view.nested())
        stored.nested_absmax = place("nested absmax", host_array(view.nested_absmax, nested_blocks, at::kFloat));
    at::Tensor tables = at::zeros({16 + 256}, at::kFloat);
    tables.narrow(0, 0, 16).copy_(host_array(view.code, 16, at::kFloat));
    if (view.nested()) tables.narrow(0, 16, 256).copy_(host_array(view.nested_map, 256, at::kFloat));
    stored.tables = place("tables", tables);
    if (keep) source.drop();
    return stored;
}

at::Tensor ModelPlan::load_vector(const memory::Arena& arena, const formats::TensorSource* source) const {
    if (source == nullptr) return {};
    const at::Tensor values = at::empty({source->cols()}, at::kFloat);
    source->read_f32(values.data_ptr<float>());
    const at::Tensor out = arena.tensor(arena.plan().find(source->rule.hf_name), {source->cols()}, at::kFloat);
    return out.copy_(values);
}

at::Tensor ModelPlan::load_bias(const memory::Arena& arena, int layer, Group g) const {
    const GroupLayout& group = layout_[g];
    if (std::none_of(group.slices.begin(), group.slices.end(),
                     [&](const Slice& s) { return spec().has_bias(s.projection); }))
        return {};
    const at::Tensor joined = at::zeros({group.n}, at::kFloat);
    for (const Slice& slice : group.slices)
        if (const formats::TensorSource* bias = file_->tensors.bias(layer, slice.projection))
            bias->read_f32(joined.data_ptr<float>() + slice.n_begin);
    return arena.tensor(arena.plan().find(cat("bias ", layer, " ", name_of(g))), {group.n}, request_.dtype)
        .copy_(joined);
}

std::vector<StoredLayer> ModelPlan::load_layers(ops::Context& ctx, const memory::Arena& arena,
                                                SharedLoading& shared) const {
    const bool masters = request_.finetuning_type == config::FinetuningType::full && request_.trains;
    std::vector<StoredLayer> layers(static_cast<std::size_t>(spec().num_layers));
    for (int layer = 0; layer < static_cast<int>(spec().num_layers); ++layer) {
        StoredLayer& stored = layers[static_cast<std::size_t>(layer)];
        for (const Group g : all_groups) stored.biases[static_cast<std::size_t>(g)] = load_bias(arena, layer, g);
        if (!resident_source())
            for (int p = 0; p < spec::projection_count; ++p) {
                StoredWeight& weight = stored.projections[static_cast<std::size_t>(p)];
                const formats::TensorSource& source = file_->tensors.linear(layer, static_cast<spec::Projection>(p));
                weight = load_linear(ctx, arena, source, shared.reads(layer));
                if (held(source) != Held::file_map) shared.expect(weight, shared.reader_of(layer));
                shared.done();
            }
        if (masters) continue;  // norms are read from the fp32 masters
        stored.input_norm_D = load_vector(arena, &file_->tensors.of(spec::TensorRole::input_norm, layer));
        stored.post_norm_D = load_vector(arena, &file_->tensors.of(spec::TensorRole::post_norm, layer));
        if (spec().qk_norm) {
            stored.q_norm_d = load_vector(arena, &file_->tensors.of(spec::TensorRole::q_norm, layer));
            stored.k_norm_d = load_vector(arena, &file_->tensors.of(spec::TensorRole::k_norm, layer));
        }
    }
    shared.finish();
    share_nested_offsets(layers, ctx.device(), shared);
    return layers;
}

OuterWeights ModelPlan::load_outer(const memory::Arena& arena, const memory::Arena* host, const Parameters* parameters,
                                   SharedLoading& shared) const {
    const bool masters = request_.finetuning_type == config::FinetuningType::full && request_.trains;
    const auto matrix = [&](const formats::TensorSource& source, const std::string& buffer,
                            const memory::Arena& where) {
        if (masters && request_.dtype == at::kFloat)
            return parameters->value(
                *parameters->table().find(source.rule.role, -1, spec::Projection::q, Parameter::Kind::base));
        const at::Tensor out = where.tensor(where.plan().find(buffer), source.rule.shape, request_.dtype),
                         values = mapped_tensor(*source.tensor);
        const auto read = [&](int64_t begin, int64_t end) {
            out.narrow(0, begin, end - begin).copy_(values.narrow(0, begin, end - begin));
        };
        if (&where == &arena) {
            shared.read_rows(out, read);
        } else {
            read(0, out.size(0));
        }
        source.drop();
        shared.done();
        return out;
    };
    const formats::TensorSource &embed = file_->tensors.of(spec::TensorRole::embed_tokens),
                                &head = file_->tensors.head();
    OuterWeights outer;
    outer.embed_VD = matrix(embed, embed.rule.hf_name, embedding_on_host() ? *host : arena);
    const bool tied = &embed == &head;
    // Trained apart from each other (modules_to_save), tied matrices become two.
    const bool untied = tied && request_.lora && !request_.lora->modules_to_save.empty();
    outer.lm_head_VD = !tied    ? matrix(head, head.rule.hf_name, arena)
                       : untied ? matrix(embed, "lm_head copy", arena)
                                : outer.embed_VD;
    outer.final_norm_D = masters ? parameters->value(*parameters->table().find(
                                       spec::TensorRole::final_norm, -1, spec::Projection::q, Parameter::Kind::base))
                                 : load_vector(arena, &file_->tensors.of(spec::TensorRole::final_norm));
    return outer;
}

void ModelPlan::initialise(Parameters& parameters, SharedLoading& shared) const {
    uint32_t index = 0;
    for (const Parameter& p : parameters.table().parameters()) {
        const uint32_t number = index++;
        if (!adapter_ && p.kind == Parameter::Kind::base) {
            initialise_base(p, parameters.value(p), shared);
            if (!request_.lora) shared.done();
            continue;
        }
        const at::Tensor values = at::zeros(p.shape, at::kFloat);
        float* const out = values.data_ptr<float>();
        if (adapter_) {
            spec::convert_to_f32(adapter_->file.at(p.name).dtype, adapter_->file.at(p.name).data.data(), p.elements(),
                                 out);
        } else if (p.kind == Parameter::Kind::lora_a) {
            fill_uniform(out, p.elements(), 1.0F / std::sqrt(static_cast<float>(p.shape[1])), request_.seed, number);
        }
        parameters.value(p).copy_(values);
    }
}

/// The fp32 master of one of the model's own tensors.
void ModelPlan::initialise_base(const Parameter& p, const at::Tensor& value, SharedLoading& shared) const {
    const formats::TensorSource* source =
        p.role == spec::TensorRole::lm_head && request_.lora ? &file_->tensors.head() : nullptr;
    if (source == nullptr && request_.lora) source = &file_->tensors.of(p.role);
    if (source == nullptr) source = file_->tensors.find(p.name);
    const auto read = [&](int64_t begin, int64_t end) {
        const at::Tensor rows = at::empty({end - begin, source->cols()}, at::kFloat);
        source->read_f32(begin, end, rows.data_ptr<float>());
        value.view({source->rows(), source->cols()}).narrow(0, begin, end - begin).copy_(rows);
    };
    if (p.layer < 0 && value.dim() == 2) {
        shared.read_rows(value, read);
    } else {
        if (p.layer < 0 || shared.reads(p.layer)) read(0, source->rows());
        if (p.layer >= 0) shared.expect(value, shared.reader_of(p.layer));
    }
    source->drop();
}

/// Norms of a model that is trained as a whole are read from its fp32 masters.
void ModelPlan::lend_master_norms(const Parameters& parameters, std::vector<StoredLayer>& layers) const {
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
        const auto master = [&](spec::TensorRole role) {
            const Parameter* p =
                parameters.table().find(role, static_cast<int>(layer), spec::Projection::q, Parameter::Kind::base);
            return p == nullptr ? at::Tensor() : parameters.value(*p);
        };
        layers[layer].input_norm_D = master(spec::TensorRole::input_norm);
        layers[layer].post_norm_D = master(spec::TensorRole::post_norm);
        layers[layer].q_norm_d = master(spec::TensorRole::q_norm);
        layers[layer].k_norm_d = master(spec::TensorRole::k_norm);
    }
}

/// A frozen projection with the values that the run trains on: 4-bit on the device where it is, or becomes, 4-bit; else
/// as it lies.
StoredWeight ModelPlan::frozen_weight(ops::Context& ctx, const formats::TensorSource& linear) const {
    if (linear.quantised()) return ops::upload(ctx, linear.quant4->view);
    const at::Tensor matrix = matrix_of(linear, matrix_type(linear));
    if (quantises(linear)) return ops::quantize_nf4(ctx, matrix.to(ctx.device()));
    return matrix;
}

/// A group's projections as one matrix of the compute type on the device, with the values that their stored form stands
/// for.
at::Tensor ModelPlan::joined_group(ops::Context& ctx, int layer, Group g) const {
    const at::Tensor joined =
        at::empty({layout_[g].n, layout_[g].k}, at::TensorOptions().dtype(request_.dtype).device(ctx.device()));
    for (const Slice& slice : layout_[g].slices) {
        const formats::TensorSource& linear = file_->tensors.linear(layer, slice.projection);
        expand(ctx, frozen_weight(ctx, linear), joined.narrow(0, slice.n_begin, slice.n));
        linear.drop();
    }
    return joined;
}

std::unique_ptr<WeightSource> ModelPlan::make_source(ops::Context& ctx, std::vector<StoredLayer> layers,
                                                     const memory::Arena& arena, const Adapters* adapters,
                                                     const Parameters* masters, SharedLoading& shared) const {
    if (!resident_source())
        return std::make_unique<ScratchSource>(ctx, layout_, request_.dtype, std::move(layers), arena, adapters,
                                               request_.nf4_chooser, request_.trains);
    if (request_.fp8) {
        auto source =
            std::make_unique<Fp8Source>(ctx, spec(), layout_, request_.dtype, std::move(layers), arena, adapters);
        for (int layer = 0; layer < static_cast<int>(spec().num_layers); ++layer)
            for (const Group g : all_groups) {
                if (shared.reads(layer)) source->load(ctx, layer, g, joined_group(ctx, layer, g));
                for (const at::Tensor& values : source->base(layer, g)) shared.expect(values, shared.reader_of(layer));
                shared.done(static_cast<int64_t>(layout_[g].slices.size()));
            }
        return source;
    }
    auto source = std::make_unique<ResidentSource>(ctx, spec(), layout_, request_.dtype, std::move(layers), arena,
                                                   adapters, masters);
    if (masters != nullptr) return source;
    for (const formats::TensorSource& linear : file_->tensors.all()) {
        if (linear.rule.role != spec::TensorRole::linear) continue;
        shared.done();
        if (!shared.reads(linear.rule.layer)) continue;
        source->load(ctx, linear.rule.layer, linear.rule.projection, frozen_weight(ctx, linear));
        linear.drop();
    }
    for (int layer = 0; layer < static_cast<int>(spec().num_layers); ++layer)
        for (const Group g : all_groups) shared.expect(source->base(layer, g), shared.reader_of(layer));
    return source;
}

ModelParts ModelPlan::load(ops::Context& ctx, const LoadShare& share) const {
    const bool masters = request_.finetuning_type == config::FinetuningType::full && request_.trains;
    const int64_t outer = 2;
    SharedLoading shared(share, outer + (masters ? static_cast<int64_t>(table_->parameters().size())
                                                 : spec().num_layers * spec::projection_count));
    ModelParts parts;
    parts.records = request_.records;
    parts.resident_memory = std::make_unique<memory::Arena>(resident_, request_.device);
    const memory::Arena& arena = *parts.resident_memory;
    Network& network = parts.network;
    network.file = file_;
    network.spec = spec();
    network.layout = layout_;
    network.dtype = request_.dtype;
    network.lora = lora_layers_;
    network.lora_dropout = request_.trains && request_.lora ? request_.lora->lora_dropout : 0.0;
    network.full_finetuning = masters;
    if (table_) {
        network.parameters = std::make_unique<Parameters>(*table_, request_.optim, request_.trains, arena);
        initialise(*network.parameters, shared);
    }
    if (!lora_layers_.empty()) network.adapters = std::make_unique<Adapters>(*network.parameters, lora_layers_);
    std::vector<StoredLayer> layers = load_layers(ctx, arena, shared);
    if (masters) lend_master_norms(*network.parameters, layers);
    network.source = make_source(ctx, std::move(layers), arena, network.adapters.get(),
                                 masters ? network.parameters.get() : nullptr, shared);
    if (!host_.entries().empty())
        parts.host_memory = std::make_unique<memory::Arena>(memory::Arena::host(host_, request_.device));
    if (request_.saves && table_) parts.copies = Parameters::copies(*table_, request_.optim, *parts.host_memory);
    network.outer = load_outer(arena, parts.host_memory.get(), network.parameters.get(), shared);
    shared.finish();
    parts.step_memory = std::make_unique<memory::Arena>(step_, request_.device);
    for (int64_t micro = 0; micro < request_.sizes.in_flight; ++micro)
        parts.activations.push_back(std::make_unique<Activations>(spec(), layout_, request_.sizes, request_.dtype,
                                                                  *parts.step_memory, parts.host_memory.get(), micro));
    return parts;
}

}  // namespace unsloth::model
