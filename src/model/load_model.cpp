// ModelPlan::load: from the plan to a model in memory.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>

#include "unsloth/core/log.h"
#include "unsloth/core/philox.h"
#include "unsloth/core/text.h"
#include "unsloth/model/loader.h"
#include "unsloth/spec/convert.h"
#include "unsloth/weights/base_identity.h"
#include "unsloth/weights/part.h"

namespace unsloth::model {
namespace {

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

/// Rows [begin, end) of the source as the master has them.
at::Tensor read_rows(const weights::Parameter& p, const formats::TensorSource& source, int64_t begin, int64_t end) {
    at::Tensor rows = at::empty({end - begin, source.cols()}, at::kFloat);
    source.read_f32(begin, end, rows.data_ptr<float>());
    if (p.shift != 0) rows.add_(p.shift);
    return rows;
}

/// Reads the rows of which this rank holds some, in blocks of bounded size.
void read_held_rows(const weights::Parameters& parameters, const weights::Parameter& p,
                    const formats::TensorSource& source) {
    constexpr int64_t most = int64_t{4} << 20;  // elements
    const weights::ParameterSlice held = parameters.held(), part = held.with({p.offset, p.offset + p.elements()});
    const int64_t cols = source.cols(), last = (part.end - p.offset + cols - 1) / cols;
    for (int64_t row = (part.begin - p.offset) / cols; row < last && part.elements() > 0;) {
        const int64_t end = std::min(last, row + std::max<int64_t>(1, most / cols));
        const at::Tensor rows = read_rows(p, source, row, end).view({-1});
        const weights::ParameterSlice some = part.with({p.offset + row * cols, p.offset + end * cols});
        parameters.values_P.narrow(0, some.begin - held.begin, some.elements())
            .copy_(rows.narrow(0, some.begin - p.offset - row * cols, some.elements()));
        row = end;
    }
}

}  // namespace

void ModelPlan::initialise(weights::Parameters& parameters, weights::SharedLoading& shared) const {
    std::map<std::string, uint32_t> numbers;  // among all ranks'
    for (const weights::Parameter& p : table_->parameters()) numbers.emplace(p.name, numbers.size());
    for (const weights::Parameter& p : parameters.table().parameters()) {
        const uint32_t number = numbers.at(p.name);
        if (!adapter_ && p.kind == weights::Parameter::Kind::base) {
            initialise_base(p, parameters, shared);
            if (!request_.lora) shared.done();
            continue;
        }
        const at::Tensor values = at::zeros(p.shape, at::kFloat);
        float* const out = values.data_ptr<float>();
        if (stack_) {
            parameters.assign(p, stack_->values(p));
            continue;
        }
        if (adapter_) {
            spec::convert_to_f32(adapter_->file.at(p.name).dtype, adapter_->file.at(p.name).data.data(), p.elements(),
                                 out);
            parameters.assign(p, weights::from_stored(p, values));
            continue;
        } else if (p.kind == weights::Parameter::Kind::lora_a) {
            fill_uniform(out, p.elements(), 1.0F / std::sqrt(static_cast<float>(p.shape[1])), request_.seed, number);
        }
        parameters.assign(p, values);
    }
}

/// The fp32 master of one of the model's own tensors.
void ModelPlan::initialise_base(const weights::Parameter& p, weights::Parameters& parameters,
                                weights::SharedLoading& shared) const {
    const formats::TensorSource* source =
        p.role == spec::TensorRole::lm_head && request_.lora ? &file_->tensors.head() : nullptr;
    if (source == nullptr && request_.lora) source = &file_->tensors.of(p.role);
    if (source == nullptr) source = file_->tensors.find(p.name);
    if (parameters.sharding().has_copies()) {
        read_held_rows(parameters, p, *source);
        source->drop();
        return;
    }
    const at::Tensor value = parameters.value(p);
    const auto read = [&](int64_t begin, int64_t end) {
        value.view({source->rows(), source->cols()})
            .narrow(0, begin, end - begin)
            .copy_(read_rows(p, *source, begin, end));
    };
    if (p.id.layer < 0 && value.dim() == 2) {
        shared.read_rows(value, read);
    } else {
        if (p.id.layer < 0 || shared.reads(p.id.layer)) read(0, source->rows());
        if (p.id.layer >= 0) shared.expect(value, shared.reader_of(p.id.layer));
    }
    source->drop();
}

/// Of the model's rows, of which each tensor-parallel rank has measured its own.
at::Tensor ModelPlan::base_norms(ops::Context& ctx, const weights::DoraNorms& measured,
                                 const weights::Parameter& p) const {
    const at::Tensor own_n = measured.norms(p.id), whole_N = at::empty(p.shape, own_n.options());
    spec::TensorRank place = request_.tp.place();
    const at::Tensor all = at::empty({place.size, own_n.numel()}, own_n.options());
    all[place.rank].copy_(own_n);
    request_.tp.gather(ctx, all, "DoRA's first magnitudes");
    for (place.rank = 0; place.rank < place.size; ++place.rank)
        for (const weights::RowRun& run : weights::row_runs(spec::slice_of(spec(), p.id.projection, place)))
            whole_N.narrow(0, run.whole, run.rows).copy_(all[place.rank].narrow(0, run.own, run.rows));
    return whole_N;
}

/// The part of the base in host memory: found there, or read.
void ModelPlan::load_common(ops::Context& ctx, const weights::LoadShare& share, ModelParts& parts,
                            weights::SharedLoading& shared) const {
    if (const memory::Plan plan = common(); !plan.entries().empty()) {
        const std::string base =
            request_.held ? request_.held->owner() : weights::base_identity(*file_, request_.device);
        const auto begin = std::chrono::steady_clock::now();
        parts.common_memory = std::make_unique<memory::CommonMemory>(plan, base, request_.device, share.nodes);
        const auto waited = parts.common_memory->fill([&](memory::BufferId id, const at::Tensor& memory) {
            parts_.base->read_common(ctx, plan.entry(id).name, memory, shared);
        });
        const memory::CommonMemory::Share taken = parts.common_memory->share();
        const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin - waited;
        const int64_t loaded = taken.filled + taken.own;
        const auto rate = static_cast<int64_t>(static_cast<double>(loaded) / spent.count());
        log::info("host memory of the base, once for all processes with it: ", human_bytes(taken.filled), " loaded, ",
                  human_bytes(taken.found), " found with other processes",
                  loaded > 0 ? cat(", ", human_bytes(rate), "/s loaded here") : "");
    }
    if (request_.held) request_.held->release();  // common_memory has what is needed of it
}

/// What the network is, before it has weights.
void ModelPlan::describe(Network& network, const memory::Arena& arena) const {
    network.file = file_;
    network.spec = spec();
    network.tp = request_.tp;
    network.cp = request_.cp;
    network.pp = request_.pp;
    network.own = own_;
    network.layout = layout_;
    network.dtype = request_.dtype;
    network.lowest_trained_layer = lowest_trained_layer_;
    network.trains_embedding = request_.trains && trains(spec::TensorRole::embed_tokens);
    network.trains_tower = trains_tower();
    network.lora_dropout = request_.trains && request_.lora ? request_.lora->lora_dropout : 0.0;
    network.noise_alpha = request_.trains ? request_.noise_alpha : 0.0;
    network.router_aux = request_.trains ? request_.router_aux : 0.0;
    if (request_.trains && spec().experts)
        network.router_ends_LE = arena
                                     .tensor(arena.plan().find(Network::router_ends_name),
                                             {spec().num_layers, 1 + spec().experts->count}, at::kInt)
                                     .zero_();
    network.full_finetuning = trains_all();
}

ModelParts ModelPlan::load(ops::Context& ctx, const weights::LoadShare& share) const {
    const bool masters = trains_all();
    const int64_t outer = 2;
    ModelParts parts;
    int64_t linears = 0;
    for (const int layer : own_layers()) linears += static_cast<int64_t>(spec().linears_of(layer).size());
    weights::SharedLoading shared(share,
                                  outer + (masters ? static_cast<int64_t>(own_table_->parameters().size()) : linears));
    load_common(ctx, share, parts, shared);
    parts.records = records() && parts_.base->recordable();
    parts.resident_memory = std::make_unique<memory::Arena>(resident(), request_.device);
    const memory::Arena& arena = *parts.resident_memory;
    Network& network = parts.network;
    describe(network, arena);
    if (memory::Plan plan = host(); !plan.entries().empty())
        parts.host_memory = std::make_unique<memory::Arena>(memory::Arena::host(std::move(plan), request_.device));
    if (table_) {
        network.trained_by_all = *table_;
        network.parameters = std::make_unique<weights::Parameters>(*own_table_, request_.optim, request_.trains,
                                                                   request_.sharding, arena, parts.host_memory.get());
        initialise(*network.parameters, shared);
        const bool both_ends = masters && spec().tie_word_embeddings && !network.pp.alone();
        network.store =
            std::make_unique<ParameterStore>(ctx, *network.parameters, request_.data_parallel, network.pp,
                                             both_ends ? network.trained(spec::TensorRole::embed_tokens) : nullptr);
    }
    if (!lora_layers_.empty())
        network.adapters = std::make_unique<weights::Adapters>(*network.parameters, lora_layers_);
    const weights::Parameters* const trained = masters ? network.parameters.get() : nullptr;
    if (stack_) network.owners = stack_->owners(layout_, arena);
    weights::BaseMemory base_memory{arena, parts.common_memory.get(), parts.host_memory.get()};
    if (request_.peers.size > 1) base_memory.peers = share.share_memory(parts_.of_base.peer);
    network.weight_provider =
        parts_.base->load_layers(ctx, base_memory, network.adapters.get(), trained, shared, request_.tp.ranks());
    if (!adapter_ && layout_.dora)
        for (const weights::Parameter& p : own_table_->parameters())
            if (p.kind == weights::Parameter::Kind::magnitude)
                network.parameters->assign(p, base_norms(ctx, *network.weight_provider->dora(), p));
    if (network.store) {
        network.weight_provider->set_values(network.store->values());
        if (request_.sharding.has_copies()) network.store->publish("the values to begin with");
    }
    if (request_.saves && own_table_ && !request_.sharding.on_host())
        parts.copies =
            weights::Parameters::copies(*own_table_, request_.optim, request_.sharding, parts.host_memory.get());
    network.embedding_and_head = parts_.base->load_embedding_and_head(ctx, base_memory, trained, shared);
    if (request_.kept) {
        network.kept = request_.kept;
        network.kept->open(request_.kept_bytes > 0
                               ? parts.host_memory->tensor(parts.host_memory->plan().find(KeptFeatures::buffer),
                                                           {request_.kept_bytes}, at::kByte)
                               : at::Tensor());
    }
    if (sees_images())
        network.vision = weights::VisionWeights::load(*spec().vision, request_.dtype, file_->tensors.vision, arena);
    if (sees_images() && !tower_lora_.empty())
        network.vision->adapt(*spec().vision, tower_lora_, *network.parameters, arena);
    parts.step_memory = std::make_unique<memory::Arena>(step(), request_.device);
    for (int64_t micro = 0; micro < request_.run.in_flight; ++micro)
        parts.activations.push_back(std::make_unique<Activations>(own_, layout_, request_.sizes, request_.run,
                                                                  request_.dtype, *parts.step_memory,
                                                                  parts.host_memory.get(), micro));
    return parts;
}

}  // namespace unsloth::model
