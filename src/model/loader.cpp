#include "unsloth/model/loader.h"

#include <algorithm>
#include <set>

#include "unsloth/core/error.h"
#include "unsloth/core/hash.h"
#include "unsloth/core/text.h"
#include "unsloth/model/decoder_layer.h"
#include "unsloth/ops/experts.h"

namespace unsloth::model {
namespace {

/// What the driver takes for a layer's forward and backward pass of one shape, and for a pass that decodes.
constexpr int64_t recorded_layer_bytes = 256 << 10, decoded_layer_bytes = recorded_layer_bytes / 2;
/// And for a launch that expands eight of a layer's experts' matrices.
constexpr int64_t recorded_expansion_bytes = 4 << 10, matrices_a_launch = 8;

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

memory::Plan placed(memory::Plan plan) {
    plan.place();
    return plan;
}

/// Bytes of the buffers that `submit` adds.
template <class Submit>
int64_t bytes_by(const Submit& submit) {
    memory::Plan plan(memory::Detail::sizes);
    submit(plan);
    plan.place();
    return plan.total_bytes();
}

std::vector<spec::Place> layers_at(const spec::RunPlan& run) {
    std::vector<spec::Place> places;
    for (const spec::LayerPlan& layer : run.layers) places.push_back(layer.weights_at);
    return places;
}

}  // namespace

ModelPlan::ModelPlan(std::shared_ptr<const formats::WeightFile> file, LoadRequest request)
    : file_(std::move(file)), request_(std::move(request)) {
    read_trained();
    plan_rank();
}

ModelPlan ModelPlan::with(LoadRequest request) const {
    UNSLOTH_CHECK(request.finetuning_type == request_.finetuning_type && request.trains == request_.trains,
                  "a plan that trains something else");
    ModelPlan other = *this;
    other.request_ = std::move(request);
    other.request_.lora = request_.lora;
    other.plan_rank();
    return other;
}

/// What all ranks train together.
void ModelPlan::read_trained() {
    const bool full = request_.finetuning_type == config::FinetuningType::full;
    if (full && file_->tensors.quantised_linears() + file_->tensors.int8_linears() > 0)
        throw Error(
            "model.not-trainable",
            cat(file_->checkpoint.folder().string(), ": finetuning_type full needs 16/32-bit weights, these are ",
                file_->tensors.int8_linears() > 0 ? "8-bit" : "4-bit"),
            "Point model.path at the unquantised checkpoint, or use finetuning_type lora.");
    if (full && spec().experts)
        throw Error(
            "model.not-trainable",
            cat(file_->checkpoint.folder().string(), ": finetuning_type full does not train a model of experts"),
            "Use finetuning_type lora.");
    if (full && !spec().part_of.empty())
        throw Error("model.not-trainable",
                    cat(file_->checkpoint.folder().string(), ": finetuning_type full would save the text part of ",
                        spec().part_of, " without the others"),
                    "Use finetuning_type lora, and merge the adapter: the other parts stay as they are.");
    const bool asks_for_tower = request_.lora && request_.lora->tower == spec::TowerTargets::all;
    if (request_.adapter) {
        adapter_ = std::make_shared<const formats::Adapter>(formats::read_adapter(*request_.adapter, spec()));
        const double dropout = request_.lora ? request_.lora->lora_dropout : adapter_->config.lora.lora_dropout;
        request_.lora = adapter_->config.lora;
        request_.lora->lora_dropout = dropout;
        if (request_.ignore_serve_grid) request_.lora->serve_grid = spec::ServeGrid::none;
        if (asks_for_tower && adapter_->tower.empty())
            throw Error(
                "adapter.contradicts",
                cat("lora.vision contradicts the adapter in ", *request_.adapter, ", which is of the text model"),
                "Leave the option out: the adapter's own config decides.");
    }
    if (!request_.adapters.empty()) {
        UNSLOTH_CHECK(!request_.adapter && !request_.trains, "several adapters are for answers alone");
        stack_ = std::make_shared<const weights::MultiLoraAdapters>(request_.adapters, spec());
    } else if (request_.adapter_slots.count > 0) {
        UNSLOTH_CHECK(!request_.adapter && !request_.trains, "slots of adapters are for answers alone");
        stack_ = std::make_shared<const weights::MultiLoraAdapters>(request_.adapter_slots, spec());
    }
    if (request_.trains && request_.lora && request_.lora->use_dora && request_.lora->lora_dropout > 0)
        throw Error(
            "option.unsupported",
            "lora.use_dora cannot be combined with lora.lora_dropout: PEFT's DoRA drops the base product's input "
            "too, which would take each of them twice",
            "Set lora.lora_dropout to 0.");
    if (full && request_.trains) {
        table_ = share(weights::ParameterTable::full(spec()));
    } else if (stack_) {
        all_lora_ = share(stack_->layers());
        table_ = share(weights::ParameterTable::lora(spec(), *all_lora_, {}));
    } else if (request_.lora) {
        request_.lora = spec::for_model(*request_.lora, spec());
        if (!request_.adapter) spec::refuse_idle_patterns(*request_.lora, spec());
        all_lora_ = share(spec::resolve_lora(*request_.lora, spec()));
        tower_lora_ = spec::resolve_tower_lora(*request_.lora, spec());
        UNSLOTH_CHECK(!adapter_ || adapter_->tower.size() == tower_lora_.size(), "an adapter's tower has ",
                      adapter_->tower.size(), " linears, of which ", tower_lora_.size(), " were read");
        table_ = share(weights::ParameterTable::lora(spec(), *all_lora_, request_.lora->modules_to_save, tower_lora_));
        if (!tower_lora_.empty()) require_tower();
    }
    if (grid() != spec::ServeGrid::none) require_grid();
    if (request_.router_aux > 0 && !spec().experts)
        throw Error("option.no-effect", "training.router_aux_loss_coef balances experts, and this model has none",
                    "Leave router_aux_loss_coef out.");
    if (request_.lora && request_.lora->use_dora && spec().experts)
        throw Error("adapter.unsupported", "lora.use_dora cannot be combined with a model of experts",
                    "Leave use_dora out: plain adapters do.");
    const auto has = [&](spec::TensorRole role) {
        return table_ && table_->find(role, {}, weights::Parameter::Kind::base) != nullptr;
    };
    trains_embedding_ = has(spec::TensorRole::embed_tokens);
    trains_head_ = has(spec::TensorRole::lm_head);
}

/// Of that, and of the model, what is this rank's.
void ModelPlan::plan_rank() {
    if (sees_images()) require_images();
    if (spec().delta) require_delta();
    request_.sharding.dtype = request_.dtype;
    request_.sharding.host_is_far = request_.device.is_cuda();
    own_ = spec::slice(spec(), request_.tp.place());
    const spec::Stage& stage = request_.pp.stage();
    lora_layers_ = all_lora_ ? *all_lora_ : std::vector<spec::LayerLora>{};
    layout_ = weights::make_layout(spec(), lora_layers_, request_.tp.place(), stage);
    if (table_) choose_own(stage);
    of_trained_ = {};
    of_trained_.resident = bytes_by([&](memory::Plan& plan) { submit_trained(plan); });
    memory::Plan host;
    submit_trained_host(host);
    host.place();
    of_trained_.host = host.total_bytes();
    for (const memory::Entry& entry : host.entries())
        if (entry.group == weights::copies_group) of_trained_.saved += entry.bytes;
    parts_.base = std::make_shared<const weights::BasePlan>(file_, layout_, lora_layers_,
                                                            base_request(complete(request_.run)), parts_.base.get());
    parts_.of_base = bytes_of(*parts_.base);
    complete_sizes();
    set_run(request_.run);
}

/// What this rank trains, and how low gradients go.
void ModelPlan::choose_own(const spec::Stage& stage) {
    own_table_ = stage.alone() ? table_ : share(table_->of(stage, trains_all() && spec().tie_word_embeddings));
    if (own_table_->parameters().empty())
        throw Error("parallel.model-does-not-divide",
                    cat("distributed.pp_size ", stage.size, ": nothing is trained in stage ", stage.rank + 1),
                    "Take fewer stages, or train adapters in all layers.");
    const bool by_layers = trains_tower() && spec().vision->tiles;  // features enter the layers that cross
    const auto needs_gradient = [&](int layer) {
        return !lora_layers_[static_cast<std::size_t>(layer)].empty() || (by_layers && spec().crosses(layer));
    };
    lowest_trained_layer_ = 0;
    if (!trains_all() && !trains(spec::TensorRole::embed_tokens) && (by_layers || !trains_tower()))
        while (lowest_trained_layer_ < spec().num_layers && !needs_gradient(lowest_trained_layer_))
            ++lowest_trained_layer_;
    for (std::size_t layer = 0; layer < lora_layers_.size(); ++layer)
        if (!stage.has(static_cast<int64_t>(layer))) lora_layers_[layer] = {};
}

spec::RunPlan ModelPlan::complete(spec::RunPlan run) const {
    run.in_flight = std::max<int64_t>(run.in_flight, request_.pp.places());
    if (spec().experts) run.row_tile = 0;  // rows of experts are of all tokens
    const auto layers = static_cast<std::size_t>(spec().num_layers);
    if (run.layers.size() < 2) run.layers.resize(layers, run.layers.empty() ? spec::LayerPlan{} : run.layers.front());
    UNSLOTH_CHECK(run.layers.size() == layers, run.layers.size(), " layers planned, the model has ", layers);
    UNSLOTH_CHECK(std::none_of(run.layers.begin() + run.layers_on_host(), run.layers.end(),
                               [](const spec::LayerPlan& layer) { return layer.activations_at == spec::Place::host; }),
                  "a layer offloads its activations above one that does not");
    return run;
}

void ModelPlan::set_run(spec::RunPlan run) {
    run = complete(std::move(run));
    parts_ = parts(run);
    request_.run = std::move(run);
}

void ModelPlan::set_sizes(const ActivationSizes& sizes) {
    UNSLOTH_CHECK((sizes.patches > 0) == sees_images(), "images are planned for, or are not, from the start");
    request_.sizes = sizes;
    complete_sizes();
    set_run(std::move(request_.run));
}

spec::MemoryNeed ModelPlan::estimate(const spec::RunPlan& run) const {
    const spec::RunPlan completed = complete(run);
    return need(parts(completed), completed);
}

/// For a completed plan.
ModelPlan::Parts ModelPlan::parts(const spec::RunPlan& run) const {
    Parts parts = parts_;
    if (!parts.base->is_planned_as(cached_layers(run), layers_at(run))) {
        parts.base = std::make_shared<const weights::BasePlan>(file_, layout_, lora_layers_, base_request(run),
                                                               parts_.base.get());
        parts.of_base = bytes_of(*parts.base);
    }
    memory::Plan step(memory::Detail::sizes), host(memory::Detail::sizes);
    submit_step(run, step, host);
    step.place(), host.place();
    parts.of_step = {step.total_bytes(), host.total_bytes()};
    return parts;
}

spec::MemoryNeed ModelPlan::need(const Parts& parts, const spec::RunPlan& run) const {
    const int64_t host = parts.of_step.host + parts.of_base.host + of_trained_.host;
    return {of_trained_.resident + parts.of_base.resident + parts.of_base.peer + parts.of_step.device +
                recorded_bytes(parts, run) +
                (request_.device.is_cpu() ? host + parts.of_base.common : outside_arenas()),
            request_.processes * (host - of_trained_.saved) + request_.writers * of_trained_.saved +
                base_copies() * parts.of_base.common,
            base_copies() * parts.of_base.there};
}

bool ModelPlan::trains(spec::TensorRole role) const {
    return role == spec::TensorRole::embed_tokens ? trains_embedding_ : trains_head_;
}

weights::BaseRequest ModelPlan::base_request(const spec::RunPlan& run) const {
    const bool tied = spec().tie_word_embeddings;
    return {.device = request_.device,
            .dtype = request_.dtype,
            .held = request_.finetuning_type == config::FinetuningType::lora
                        ? formats::HeldTypes{request_.load_in_4bit, request_.load_in_8bit, request_.precision}
                        : formats::HeldTypes{},
            .coded = request_.coded,
            .mantissa_bits = request_.mantissa_bits,
            .masters = trains_all(),
            .reads_values = request_.trains && request_.sharding.has_copies(),
            .trains = request_.trains,
            .cached = cached_layers(run),
            .offload_folder = request_.offload_folder,
            .layers_at = layers_at(run),
            .peers = request_.peers,
            .embedding_on_host = request_.device.is_cuda() && request_.offload_embedding &&
                                 !trains(spec::TensorRole::embed_tokens) && !tied,
            .unties_head = tied && request_.lora && !request_.lora->modules_to_save.empty(),
            .trains_embedding = trains(spec::TensorRole::embed_tokens),
            .trains_head = trains(spec::TensorRole::lm_head),
            .fp32_logits = request_.sizes.objective.fp32_logits,
            .nf4_chooser = request_.nf4_chooser,
            .fewest_tokens = request_.fewest_tokens > 0 ? request_.fewest_tokens : request_.sizes.tokens,
            .tails_may_stay = request_.tails_may_stay,
            .grid = grid()};
}

void ModelPlan::submit_trained(memory::Plan& resident) const {
    if (own_table_)
        weights::Parameters::plan(*own_table_, request_.optim, request_.trains, request_.sharding, resident);
    if (stack_) stack_->plan(layout_, resident);
    if (sees_images()) weights::VisionWeights::plan(*spec().vision, request_.dtype, file_->tensors.vision, resident);
    if (sees_images()) weights::VisionWeights::plan_adapters(tower_lora_, request_.dtype, resident);
    if (request_.trains && spec().experts)
        resident.add("workspace", Network::router_ends_name,
                     spec().num_layers * (1 + spec().experts->count) * static_cast<int64_t>(sizeof(int32_t)));
}

void ModelPlan::submit_trained_host(memory::Plan& host) const {
    if (own_table_)
        weights::Parameters::plan_host(*own_table_, request_.optim, request_.trains, request_.sharding, host);
    if (request_.saves && own_table_)
        weights::Parameters::plan_copies(*own_table_, request_.optim, request_.sharding, host);
}

void ModelPlan::submit_step(const spec::RunPlan& run, memory::Plan& step, memory::Plan& host) const {
    Activations::plan(own_, layout_, request_.sizes, run, request_.dtype, request_.device, step, host);
    if (request_.kept_bytes > 0)
        host.add(KeptFeatures::group, [] { return KeptFeatures::buffer; }, request_.kept_bytes);
}

ModelPlan::BaseBytes ModelPlan::bytes_of(const weights::BasePlan& base) const {
    using memory::Plan;
    int64_t there = 0;
    if (request_.held) {
        Plan common;
        base.submit_common(common);
        for (const memory::Entry& entry : common.entries())
            there += std::min(entry.bytes, request_.held->bytes(entry.content));
    }
    return {.resident = bytes_by([&](Plan& plan) { base.submit(plan); }),
            .peer = bytes_by([&](Plan& plan) { base.submit_peer(request_.peers.rank, plan); }),
            .host = bytes_by([&](Plan& plan) { base.submit_host(plan); }),
            .common = bytes_by([&](Plan& plan) { base.submit_common(plan); }),
            .there = there};
}

memory::Plan ModelPlan::resident() const {
    memory::Plan plan;
    parts_.base->submit(plan);
    submit_trained(plan);
    return placed(std::move(plan));
}

memory::Plan ModelPlan::peer() const {
    memory::Plan plan;
    parts_.base->submit_peer(request_.peers.rank, plan);
    return placed(std::move(plan));
}

memory::Plan ModelPlan::common() const {
    memory::Plan plan;
    parts_.base->submit_common(plan);
    return placed(std::move(plan));
}

memory::Plan ModelPlan::step() const {
    memory::Plan plan, host;
    submit_step(request_.run, plan, host);
    return placed(std::move(plan));
}

memory::Plan ModelPlan::host() const {
    memory::Plan step, plan;
    submit_step(request_.run, step, plan);
    parts_.base->submit_host(plan);
    submit_trained_host(plan);
    return placed(std::move(plan));
}

std::string ModelPlan::resident_fingerprint() const {
    ContentHash hash;
    // Of trained parameters a rank may have a slice, which no other rank has and whose size differs.
    std::set<std::string> own{weights::optimizer_group};
    if (table_ && request_.sharding.splits_gradients()) {
        memory::Plan trained;
        weights::Parameters::plan(*table_, request_.optim, request_.trains, request_.sharding, trained);
        for (const memory::Entry& entry : trained.entries()) own.insert(entry.group);
    }
    const memory::Plan resident = this->resident();
    for (const memory::Entry& entry : resident.entries())
        if (!own.contains(entry.group)) hash.add_field(cat(entry.name, " ", entry.bytes));
    return hash.hex();
}

/// What follows from the request and the base.
void ModelPlan::complete_sizes() {
    ActivationSizes& sizes = request_.sizes;
    sizes.training = request_.trains;
    sizes.adapters = std::max(static_cast<int64_t>(request_.adapters.size()), request_.adapter_slots.count);
    sizes.coded = parts_.base->coded();
    sizes.head_coded = parts_.base->head_coded();
    sizes.expands_head = parts_.base->expands_head();
    sizes.dropout = request_.trains && request_.lora && request_.lora->lora_dropout > 0;
    sizes.noise = request_.trains && request_.noise_alpha > 0;
    sizes.balances_experts = request_.trains && request_.router_aux > 0;
    sizes.tower_rank = weights::widest_tower_rank(tower_lora_);
    sizes.trains_tower = trains_tower();
    sizes.trains_embedding = request_.trains && trains(spec::TensorRole::embed_tokens);
}

int64_t ModelPlan::recorded_bytes(const Parts& parts, const spec::RunPlan& run) const {
    if (!records() || !request_.device.is_cuda() || !parts.base->recordable()) return 0;
    const bool rollouts = request_.trains && request_.sizes.cache_tokens > 0;
    const int64_t of_layer = static_cast<int64_t>(recorded_shapes) * run.in_flight * recorded_layer_bytes,
                  decoding = rollouts ? static_cast<int64_t>(recorded_decode_shapes) * decoded_layer_bytes : 0;
    const int64_t launches = spec().experts ? 3 * spec().experts->count / matrices_a_launch : 0;  // in each pass
    const int64_t passes = 2 * static_cast<int64_t>(recorded_shapes) * run.in_flight +
                           (rollouts ? static_cast<int64_t>(recorded_decode_shapes) : 0);
    return spec().num_layers * (of_layer + decoding + passes * launches * recorded_expansion_bytes);
}

}  // namespace unsloth::model
