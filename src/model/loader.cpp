#include "unsloth/model/loader.h"

#include <algorithm>
#include <set>

#include "unsloth/core/error.h"
#include "unsloth/core/hash.h"

namespace unsloth::model {
namespace {

/// What the driver takes for a layer's forward and backward pass of one shape.
constexpr int64_t recorded_layer_bytes = 256 << 10;

std::vector<bool> cached_layers(const spec::RunPlan& run) {
    std::vector<bool> cached;
    for (const spec::LayerPlan& layer : run.layers)
        cached.push_back(layer.cached && layer.weights_at == spec::Place::device);
    return cached;
}

template <class T>
std::shared_ptr<const T> share(T value) {
    return std::make_shared<const T>(std::move(value));
}

std::shared_ptr<const memory::Plan> placed(memory::Plan plan) {
    plan.place();
    return share(std::move(plan));
}

std::vector<spec::Place> layers_at(const spec::RunPlan& run) {
    std::vector<spec::Place> places;
    for (const spec::LayerPlan& layer : run.layers) places.push_back(layer.weights_at);
    return places;
}

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
    if (!request_.adapters.empty()) {
        UNSLOTH_CHECK(!request_.adapter && !request_.trains, "several adapters are for answers alone");
        stack_ = std::make_shared<const weights::AdapterStack>(request_.adapters, spec());
    }
    if (request_.trains && request_.lora && request_.lora->use_dora && request_.lora->lora_dropout > 0)
        throw usage_error(
            "lora.use_dora does not go with lora.lora_dropout: PEFT's DoRA drops the base product's input "
            "too, which would take each of them twice",
            "Set lora.lora_dropout to 0.");
    if (full && request_.trains) {
        table_ = share(weights::ParameterTable::full(spec()));
    } else if (stack_) {
        lora_layers_ = stack_->layers();
        table_ = share(weights::ParameterTable::lora(spec(), lora_layers_, {}));
    } else if (request_.lora) {
        lora_layers_ = spec::resolve_lora(*request_.lora, spec());
        table_ = share(weights::ParameterTable::lora(spec(), lora_layers_, request_.lora->modules_to_save));
    }
    request_.holding.dtype = request_.dtype;
    request_.holding.host_is_far = request_.device.is_cuda();
    own_ = spec::slice(spec(), request_.tp.place());
    const spec::Stage& stage = request_.pp.stage();
    layout_ = weights::make_layout(spec(), lora_layers_, request_.tp.place(), stage);
    if (table_) choose_own(stage);
    set_run(request_.run);
}

/// What this rank trains, and how low gradients go.
void ModelPlan::choose_own(const spec::Stage& stage) {
    own_table_ = share(table_->of(stage, trains_all() && spec().tie_word_embeddings));
    if (own_table_->parameters().empty())
        throw usage_error(cat("distributed.pp_size ", stage.size, ": nothing is trained in stage ", stage.rank + 1),
                          "Take fewer stages, or train adapters in all layers.");
    const auto adapted = [](const spec::LayerLora& layer) {
        return std::any_of(layer.begin(), layer.end(), [](const spec::LoraModule& module) { return module.r > 0; });
    };
    if (!trains_all() && !trains(spec::TensorRole::embed_tokens))
        lowest_trained_layer_ =
            static_cast<int>(std::find_if(lora_layers_.begin(), lora_layers_.end(), adapted) - lora_layers_.begin());
    for (std::size_t layer = 0; layer < lora_layers_.size(); ++layer)
        if (!stage.has(static_cast<int64_t>(layer))) lora_layers_[layer] = {};
}

void ModelPlan::set_run(spec::RunPlan run) {
    run.in_flight = std::max<int64_t>(run.in_flight, request_.pp.places());
    const auto layers = static_cast<std::size_t>(spec().num_layers);
    if (run.layers.size() < 2) run.layers.resize(layers, run.layers.empty() ? spec::LayerPlan{} : run.layers.front());
    UNSLOTH_CHECK(run.layers.size() == layers, run.layers.size(), " layers planned, the model has ", layers);
    UNSLOTH_CHECK(std::none_of(run.layers.begin() + run.layers_on_host(), run.layers.end(),
                               [](const spec::LayerPlan& layer) { return layer.activations_at == spec::Place::host; }),
                  "a layer offloads its activations above one that does not");
    const bool same_weights =
        base_ && layers_at(run) == layers_at(request_.run) && cached_layers(run) == cached_layers(request_.run);
    request_.run = std::move(run);
    if (!same_weights) plan_resident();
    plan_step();
}

int64_t ModelPlan::host_bytes() const {
    int64_t of_one = 0;  // of the processes: the one that saves for all
    if (saved_holding().share.size == 1)
        for (const memory::Entry& entry : host_->entries())
            if (entry.group == weights::copies_group) of_one += entry.bytes;
    return request_.processes * (host_->total_bytes() - of_one) + of_one + base_copies() * common_->total_bytes();
}

weights::Holding ModelPlan::saved_holding() const {
    return request_.pp.alone() ? request_.holding : weights::Holding{};
}

spec::MemoryNeed ModelPlan::estimate(const spec::RunPlan& run) const {
    ModelPlan other = *this;
    other.set_run(run);
    return {other.total_bytes(), other.host_bytes()};
}

bool ModelPlan::trains(spec::TensorRole role) const {
    return table_ && table_->find(role, -1, spec::Projection::q, weights::Parameter::Kind::base) != nullptr;
}

weights::BaseRequest ModelPlan::base_request() const {
    const bool tied = spec().tie_word_embeddings;
    return {.device = request_.device,
            .dtype = request_.dtype,
            .held = request_.finetuning_type == config::FinetuningType::lora
                        ? formats::HeldTypes{request_.load_in_4bit, request_.load_in_8bit, request_.precision}
                        : formats::HeldTypes{},
            .fp8 = request_.fp8,
            .masters = trains_all(),
            .reads_values = request_.trains && request_.holding.has_copies(),
            .trains = request_.trains,
            .cached = cached_layers(request_.run),
            .offload_folder = request_.offload_folder,
            .layers_at = layers_at(request_.run),
            .peers = request_.peers,
            .embedding_on_host = request_.device.is_cuda() && request_.offload_embedding &&
                                 !trains(spec::TensorRole::embed_tokens) && !tied,
            .unties_head = tied && request_.lora && !request_.lora->modules_to_save.empty(),
            .trains_embedding = trains(spec::TensorRole::embed_tokens),
            .trains_head = trains(spec::TensorRole::lm_head),
            .nf4_chooser = request_.nf4_chooser,
            .fewest_tokens = request_.fewest_tokens > 0 ? request_.fewest_tokens : request_.sizes.tokens};
}

void ModelPlan::plan_resident() {
    base_ = std::make_shared<const weights::BasePlan>(file_, layout_, lora_layers_, base_request());
    memory::Plan resident, peer;
    base_->submit(resident);
    if (own_table_) weights::Parameters::plan(*own_table_, request_.optim, request_.trains, request_.holding, resident);
    if (stack_) stack_->plan(layout_, resident);
    base_->submit_peer(request_.peers.rank, peer);
    resident_ = placed(std::move(resident));
    peer_ = placed(std::move(peer));
}

std::string ModelPlan::resident_fingerprint() const {
    ContentHash hash;
    // Of what is trained a rank may have a slice, which is nobody else's and of its own size.
    std::set<std::string> own{weights::optimizer_group};
    if (table_ && request_.holding.has_streams()) {
        memory::Plan trained;
        weights::Parameters::plan(*table_, request_.optim, request_.trains, request_.holding, trained);
        for (const memory::Entry& entry : trained.entries()) own.insert(entry.group);
    }
    for (const memory::Plan* plan : {resident_.get(), common_.get()})
        for (const memory::Entry& entry : plan->entries())
            if (!own.contains(entry.group)) hash.add_field(cat(entry.name, " ", entry.bytes));
    return hash.hex();
}

void ModelPlan::set_sizes(const ActivationSizes& sizes) {
    request_.sizes = sizes;
    plan_step();
}

void ModelPlan::plan_step() {
    request_.sizes.training = request_.trains;
    request_.sizes.adapters = static_cast<int64_t>(request_.adapters.size());
    request_.sizes.codes = base_->reads_codes();
    request_.sizes.expands_head = base_->expands_head();
    request_.sizes.dropout = request_.trains && request_.lora && request_.lora->lora_dropout > 0;
    request_.sizes.weighs = request_.trains && request_.weighs;
    request_.sizes.noise = request_.trains && request_.noise_alpha > 0;
    request_.sizes.trains_embedding = request_.trains && trains(spec::TensorRole::embed_tokens);
    memory::Plan step, host, common;
    Activations::plan(own_, layout_, request_.sizes, request_.run, request_.dtype, request_.device, step, host);
    base_->submit_host(host);
    base_->submit_common(common);
    if (own_table_)
        weights::Parameters::plan_host(*own_table_, request_.optim, request_.trains, request_.holding, host);
    if (request_.saves && table_) weights::Parameters::plan_copies(*table_, request_.optim, saved_holding(), host);
    step_ = placed(std::move(step));
    host_ = placed(std::move(host));
    common_ = placed(std::move(common));
}

int64_t ModelPlan::recorded_bytes() const {
    if (!records() || !request_.device.is_cuda() || !base_->recordable()) return 0;
    return static_cast<int64_t>(recorded_shapes) * request_.run.in_flight * spec().num_layers * recorded_layer_bytes;
}

std::map<std::string, int64_t> ModelPlan::groups() const {
    std::map<std::string, int64_t> groups;
    std::vector<const memory::Plan*> parts = {resident_.get(), peer_.get(), step_.get()};
    if (request_.device.is_cpu()) parts.insert(parts.end(), {host_.get(), common_.get()});
    for (const memory::Plan* part : parts)
        for (const memory::Entry& entry : part->entries()) groups[entry.group] += entry.bytes;
    groups["recorded passes"] = recorded_bytes();
    std::erase_if(groups, [](const auto& group) { return group.second == 0; });
    return groups;
}

std::string ModelPlan::table_text() const {
    const int with = request_.processes / base_copies();
    const std::string host = cat(host_->entries().empty() ? "" : cat("\nin host memory\n", host_->table()),
                                 common_->entries().empty() ? ""
                                 : with > 1 ? cat("\nin host memory, once for ", with, " ranks\n", common_->table())
                                            : cat("\nin host memory, of the base\n", common_->table()));
    const std::string beside = request_.device.is_cpu() ? ""
                                                        : cat("\nscalars, and what the allocator rounds up ",
                                                              memory::human_bytes(memory::beside_arenas_bytes));
    const std::string recorded =
        recorded_bytes() > 0 ? cat("\nrecorded passes (CUDA graphs), estimated ", memory::human_bytes(recorded_bytes()))
                             : "";
    const std::string peer =
        peer_->entries().empty() ? "" : cat("\nresident, for all ranks of the machine\n", peer_->table());
    return cat("resident\n", resident_->table(), peer, "\nper step\n", step_->table(), host, beside, recorded,
               "\nin all ", memory::human_bytes(total_bytes()));
}

}  // namespace unsloth::model
