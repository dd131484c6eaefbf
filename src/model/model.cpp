// Legend: T tokens, V vocabulary, n rows with a target, C rows of a chunk.
#include "unsloth/model/model.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "model/moe.h"
#include "model/row_range.h"
#include "unsloth/core/error.h"
#include "unsloth/model/embedding_and_head.h"
#include "unsloth/model/site.h"
#include "unsloth/model/tile_tower.h"
#include "unsloth/ops/profiler.h"
#include "unsloth/ops/rows.h"
#include "unsloth/spec/finite_sites.h"

namespace unsloth::model {

Model::Model(ops::Context& ctx, ModelParts parts)
    : ctx_(ctx),
      parts_(std::move(parts)),
      borders_(ctx, parts_.network.pp),
      recorded_(recorded_shapes),
      recorded_decoding_(parts_.activations.front()->sizes().training ? recorded_decode_shapes
                                                                      : recorded_answer_shapes) {
    const Network& network = parts_.network;
    route_ = {.layers = network.layers(),
              .lowest_layer = network.lowest_trained_layer,
              .embedding_backward = network.trains_embedding || network.trains_tower};
    for (std::unique_ptr<Activations>& activations : parts_.activations)
        micro_batches_.push_back(std::make_unique<MicroBatch>(ctx_, network.spec, std::move(activations),
                                                              route_.lowest_layer, counts_, network.tp.place().size));
    ctx_.workspace = micro_batches_.front()->activations().workspace();
}

void Model::parameters_changed() {
    if (store() != nullptr) store()->publish("the trained values");
}

bool Model::records(const Pass& pass) const {
    const bool comes_again = pass.trains() || pass.purpose == Pass::For::generation;
    return comes_again && parts_.records && ctx_.is_cuda() && !on_module && ctx_.profiler == nullptr;
}

LayerContext Model::layer_context(int layer, const MicroBatch& micro, PolicyScope scope) {
    const Network& network = parts_.network;
    const TokenInputs& inputs = micro.inputs();
    const Scratch& scratch = micro.activations().scratch();
    UNSLOTH_CHECK(micro.activations().sizes().adapters <= 1 || inputs.adapter_T.defined(),
                  "a pass does not say which of the adapters its tokens have");
    const GroupContext group{ctx_,
                             network.tp,
                             network.layout,
                             layer,
                             scope == PolicyScope::policy ? network.adapters.get() : nullptr,
                             network.parameters.get(),
                             network.full_finetuning,
                             inputs.row_T.defined() ? network.lora_dropout : 0.0,
                             inputs.row_T,
                             inputs.offset_T,
                             inputs.adapter_T,
                             &network.owners,
                             scratch.dropped,
                             on_module ? &on_module : nullptr,
                             &experts_probe};
    return {network.own, group, inputs, scratch, counts_, network.cp};
}

// --- passes --------------------------------------------------------------------------------------------------------

/// The trained parameters that the action reads and adds to. A layer's values are acquired by the weight provider.
void Model::before(const Action& action, bool trains) {
    if (store() == nullptr) return;
    if (action.part != Action::Part::layer)
        for (const int unit : units().read(action)) store()->acquire(unit);
    if (!trains) return;
    for (const int unit : units().trained(action)) store()->gradients(unit);
}

void Model::after(const Action& action, bool trains) {
    if (!trains || store() == nullptr) return;
    for (const int unit : units().trained(action)) store()->release(unit);
}

/// In place of act(), where this rank has no rows for what others take: it takes part in what they exchange.
void Model::pass_over(const Action& action, const Pass& pass) {
    if (action.part == Action::Part::layer && store() != nullptr) store()->acquire(weights::layer_unit(action.layer));
    if (action.part == Action::Part::head && pass.trains()) pass.objective->pass_over(ctx_);
}

/// What will be asked for: of frozen layers where this rank has rows, of what ranks hold among them by all alike.
void Model::begin_walk(const PassSchedule& actions, const Pass& pass) {
    PassSchedule own;
    std::copy_if(actions.begin(), actions.end(), std::back_inserter(own),
                 [&](const Action& action) { return pass.has(action); });
    parts_.network.refresh(ctx_);
    parts_.network.weight_provider->begin(ctx_, layers_of(own));
    if (store() == nullptr || !parameters()->sharding().splits_gradients()) return;  // all are where they are used
    std::vector<int> read, trained;
    const auto append = [](std::vector<int>& all, const std::vector<int>& more) {
        all.insert(all.end(), more.begin(), more.end());
    };
    for (const Action& action : actions) {
        append(read, units().read(action));
        append(trained, units().trained(action));
    }
    if (!pass.trains() && pipeline().stage().last())
        append(read, units().of_head());  // the head's part follows the walk
    store()->begin_pass(read, trained, pass.trains());
}

/// Executes the schedule, a stretch of like actions at a time: every pass goes through this loop.
void Model::walk(const PassSchedule& actions, const Pass& pass) {
    const bool trains = pass.trains();
    begin_walk(actions, pass);
    bool chosen = false;
    for (std::size_t first = 0, end = 0; first < actions.size(); first = end) {
        end = stretch_end(actions, first);
        const auto [part, direction, micro, layer] = actions[first];
        const bool forward = direction == Direction::forward, layers = part == Action::Part::layer;
        const auto stretch = [&] {
            for (std::size_t i = first; i < end; ++i) {
                before(actions[i], trains);
                pass.has(actions[i]) ? act(actions[i], pass) : pass_over(actions[i], pass);
                after(actions[i], trains);
            }
        };
        if (!layers && part != Action::Part::embedding && part != Action::Part::head) {
            stretch();  // which says itself what it is
            continue;
        }
        const ops::Region region(ctx_, part == Action::Part::head ? "head"
                                       : forward                  ? "forward"
                                       : layers                   ? "backward"
                                                                  : "embedding");
        if (layers) {
            if (!std::exchange(chosen, true)) choose_recording(actions, first, end, pass);
            recordings(pass).issue(ctx_, direction, *parts_.network.weight_provider, counts_, stretch);
        } else {
            stretch();
        }
    }
    borders_.release_all();
}

/// By the micro-batches of the first stretch over layers, whose inputs are there.
void Model::choose_recording(const PassSchedule& actions, std::size_t first, std::size_t end, const Pass& pass) {
    RecordedPasses& recorded = recordings(pass);
    if (!records(pass)) return recorded.choose_none();
    std::vector<const MicroBatch*> in_flight;
    for (std::size_t i = first; i < end && actions[i].layer == actions[first].layer; ++i)
        if (pass.has(actions[i])) in_flight.push_back(micro_batches_[place_of(actions[i].micro)].get());
    // A recording would have the places of one micro-batch's images.
    const bool adds =
        spec().vision && std::ranges::any_of(in_flight, [&](const MicroBatch* micro) {
            return micro->inputs().sight != nullptr || (!spec().vision->deepstack.empty() && !micro->images().empty());
        });
    in_flight.empty() || adds ? recorded.choose_none() : recorded.choose(ctx_, in_flight);
}

/// A micro-batch takes its place.
void Model::take_in(int index, const Pass& pass) {
    const data::Batch& batch = *pass.batches[static_cast<std::size_t>(index)];
    MicroBatch& micro = *micro_batches_[place_of(index)];
    const Network& network = parts_.network;
    borders_.release(static_cast<int>(place_of(index)));
    micro.upload(batch);
    pass.objective->upload(batch, micro);
    if (network.lora_dropout > 0.0 || network.noise_alpha > 0.0) micro.upload_rows(batch);
    if (network.noise_alpha > 0.0) micro.upload_noise(batch, network.noise_alpha);
    if (network.trains_embedding)
        micro.upload_token_order(network.tp.alone() ? batch.token_order : own_token_order(batch, micro));
}

/// Of the rank's slices of the tokens.
data::TokenOrder Model::own_token_order(const data::Batch& batch, const MicroBatch& micro) const {
    const spec::TensorRank& place = parts_.network.tp.place();
    std::vector<int32_t> ids;
    each_slice(parts_.network.tp, micro.activations().scratch(), [&](const RowRange& range) {
        const int64_t each = range.rows / place.size, first = range.begin + place.rank * each;
        for (int64_t t = first; t < first + each; ++t)  // what makes up for tokens that are missing has no gradient
            ids.push_back(t < batch.tokens() ? batch.ids_T[static_cast<std::size_t>(t)] : 0);
    });
    return data::sort_tokens(ids);
}

/// What enters the layer above a border, from the rank below or to the one above; or its gradient, the other way, which
/// takes the place of what it is the gradient of.
void Model::cross_border(const Action& action) {
    const MicroBatch& micro = *micro_batches_[place_of(action.micro)];
    const at::Tensor& x_tD = micro.activations().layer(action.layer).x_tD;
    const bool backward = action.direction == Direction::backward;
    const at::Tensor g_tD =
        backward ? micro.activations().scratch().g_full.narrow(1, 0, spec().hidden_size) : at::Tensor();
    if (action.part == Action::Part::receive) {
        borders_.receive(action.direction, x_tD, action.micro);
        if (backward) ops::copy_2d(ctx_, x_tD, g_tD);
    } else {
        if (backward) ops::copy_2d(ctx_, g_tD, x_tD);
        borders_.send(action.direction, x_tD, action.micro, static_cast<int>(place_of(action.micro)));
    }
}

/// One part of the network, one way, for one micro-batch: makes its weights ready, moves what was kept, and says which
/// gradients are complete.
void Model::act(const Action& action, const Pass& pass) {
    const Network& network = parts_.network;
    const int layer = action.layer;
    MicroBatch& micro = *micro_batches_[place_of(action.micro)];
    const Activations& a = micro.activations();
    Offload* const offload = pass.trains() ? micro.offload() : nullptr;
    const bool forward = action.direction == Direction::forward;
    switch (action.part) {
        case Action::Part::inputs:
            return take_in(action.micro, pass);
        case Action::Part::receive:
        case Action::Part::send:
            return cross_border(action);
        case Action::Part::embedding:
            if (forward) {
                embed(ctx_, network, micro, pass.trains() && network.noise_alpha > 0.0,
                      pass.scope == PolicyScope::policy);
                begin_balance(micro);
                if (on_module) on_module("model.embed_tokens", a.layer(0).x_tD);
            } else {
                if (network.trains_embedding) embedding_backward(ctx_, network, micro);
                tower_backward(ctx_, network, micro);
            }
            return;
        case Action::Part::head:
            add_balance(ctx_, network, micro);
            head_forward_backward(ctx_, network, micro, *pass.objective);
            return;
        case Action::Part::layer:
            break;
    }
    if (offload != nullptr) forward ? offload->before_forward(layer) : offload->before_backward(layer);
    // Rows without images pass by the layers that see them; the others' products have as many rows as features.
    const ImageSight* const sight = spec().crosses(layer) ? micro.inputs().sight.get() : nullptr;
    const bool passes_by = spec().crosses(layer) && sight == nullptr;
    const int64_t rows = sight != nullptr ? std::max(micro.tokens(), sight->made()) : micro.tokens();
    const weights::LayerWeights& w =
        network.weight_provider->ready(ctx_, layer, rows, pass.scope == PolicyScope::policy);
    const bool is_left_out =
        pass.purpose == Pass::For::scoring && !left_out.empty() && left_out.at(static_cast<std::size_t>(layer));
    if (forward && (is_left_out || passes_by)) {
        ops::copy_2d(ctx_, a.layer(layer).x_tD, a.output_of(layer));
        add_image_features(micro, layer);
    } else if (forward) {
        layer_forward(layer_context(layer, micro, pass.scope), w, a.layer(layer), a.output_of(layer));
        if (pass.trains() && spec().has_experts(layer) && network.tp.first())  // it is alike on all ranks
            network.router_ends_LE[layer].narrow(0, 1, spec().experts->count).add_(a.layer(layer).experts.ends_E);
        add_image_features(micro, layer);
        if (offload != nullptr) offload->after_forward(layer);
        if (on_module) on_module(cat("model.layers.", layer), a.output_of(layer));
    } else if (!passes_by) {
        take_image_gradients(network, micro, layer);
        const bool input_gradient = layer > route_.lowest_layer || network.has_embedding_gradient();
        layer_backward(layer_context(layer, micro, pass.scope), w, a.layer(layer),
                       a.run().layers[static_cast<std::size_t>(layer)].keep, input_gradient);
    }
}

/// Whole rows would count once for each rank that shares them.
const data::Batch& Model::require_slice(const data::Batch& batch) const {
    UNSLOTH_CHECK(batch.context.has_value() != parts_.network.cp.alone(),
                  "a context-parallel rank reads slices of rows");
    return batch;
}

void Model::train(std::span<const data::Batch> batches, HeadObjective& objective) {
    UNSLOTH_CHECK(batches.size() <= at_a_time(batches.size()), batches.size(), " micro-batches, ",
                  micro_batches_.size(), " planned in flight");
    Pass pass{.purpose = Pass::For::training, .objective = &objective};
    for (const data::Batch& batch : batches)  // the last of a step may have none, where the ranks have not as many rows
        if (batch.labels_of_all() > 0) pass.batches.push_back(&require_slice(batch));
    pass.present = pass.batches.size();
    route_.micro_batches = static_cast<int>(batches.size());
    walk(pipeline().alone()
             ? training_schedule(route_)
             : pipeline_pass_schedule(pipeline().stage(), pipeline().passes(route_.micro_batches), route_),
         pass);
}

// --- without a backward pass ---------------------------------------------------------------------------------------

PassSchedule Model::forward_pass() const {
    return pipeline().alone() ? forward_schedule(route_.layers) : pipeline_forward(pipeline().stage());
}

/// Up to what the head reads; a rank without rows passes with the others.
void Model::walk_forward(const Pass& pass) {
    walk(forward_pass(), pass);
    if (!pipeline().stage().last()) return;
    if (store() == nullptr) return;
    for (const int unit : units().of_head()) store()->acquire(unit);
}

void Model::forward(const data::Batch& batch, PolicyScope scope) {
    UNSLOTH_CHECK(batch.labels_of_all() > 0, "a batch without targets has no logits");
    MicroBatch& micro = *micro_batches_.front();
    micro.upload(batch);
    walk_forward({.purpose = Pass::For::scoring, .scope = scope});
    if (pipeline().stage().last()) gather_head_rows(ctx_, parts_.network, micro);
}

at::Tensor Model::logits(int64_t first, int64_t rows) {
    return head_logits(ctx_, parts_.network, *micro_batches_.front(), first, rows);
}

at::Tensor Model::score(const data::Batch& batch, const OnLogits& on_logits, PolicyScope scope) {
    if (batch.labels_of_all() == 0) {
        walk_forward({.purpose = Pass::For::scoring, .present = 0});
        return at::empty({0}, at::kFloat);
    }
    forward(require_slice(batch), scope);
    if (!pipeline().stage().last()) return at::zeros({batch.labels}, at::kFloat);
    MicroBatch& micro = *micro_batches_.front();
    const HeadBuffers& head = micro.activations().head();
    const int64_t chunk = head.logits_CV.size(0);
    if (on_module) on_module("model.norm", head.h_nD.narrow(0, 0, batch.labels));
    for (int64_t first = 0; first < batch.labels; first += chunk) {
        const int64_t rows = std::min(chunk, batch.labels - first);
        const at::Tensor logits_CV = logits(first, rows);
        head_loss(ctx_, parts_.network, micro, first, logits_CV, LogitsGradient::none);
        if (on_logits) on_logits(first, logits_CV);
    }
    // A copy on the CPU too: the buffer's bytes serve the next forward pass.
    return head.loss_n.narrow(0, 0, batch.labels).to(at::kCPU, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
}

/// Of what gated delta nets keep of sequences.
void Model::copy_states(std::span<const ops::PlaceCopy> copies) {
    if (copies.empty()) return;
    const Activations& activations = micro_batches_.front()->activations();
    std::vector<at::Tensor> data;
    for (int64_t layer = 0; layer < spec().num_layers; ++layer)
        if (const DeltaKept& kept = activations.layer(layer).kept; kept.states_NHkv.defined())
            data.insert(data.end(), {kept.inputs_NwC, kept.states_NHkv});
    ops::copy_places(ctx_, data, copies);
}

void Model::forward_with_kv_cache(const CachedPass& pass, const OnLogits& on_logits) {
    UNSLOTH_CHECK(parts_.network.tp.alone() && pipeline().alone(), "a rank has a part of the model");
    MicroBatch& micro = *micro_batches_.front();
    micro.upload(pass.batch);
    micro.forward_with_kv_cache(pass.batch, pass.slots_T, pass.adapter_T, pass.rows, pass.states);
    if (pass.sight) micro.see_cached(pass.sight, pass.seen_now);
    if (pass.ids.defined()) {
        const at::Tensor& ids_T = micro.activations().tokens().ids_T;
        ids_T.narrow(0, 0, pass.ids.size(0)).copy_(pass.ids);
    }
    copy_states(pass.resumed);
    walk_forward({.purpose = Pass::For::generation});
    copy_states(pass.kept);
    if (pass.batch.labels == 0) return;
    gather_head_rows(ctx_, parts_.network, micro);
    const int64_t chunk = micro.activations().head().logits_CV.size(0);
    for (int64_t first = 0; first < pass.batch.labels; first += chunk)
        on_logits(first, head_logits(ctx_, parts_.network, micro, first, std::min(chunk, pass.batch.labels - first)));
}

std::optional<int64_t> Model::layer_of_site(uint32_t code) const {
    const int layers = parts_.network.layers();
    if (code == spec::all_finite || code == spec::bad_gradient_norm || code == spec::bad_elsewhere) return std::nullopt;
    const Site site = site_of(code, layers);
    if (site.place == Place::loss) return std::nullopt;
    if (site.place == Place::final_norm) return layers - 1;
    // What enters a layer is what the one before made: a reader should look there.
    if (site.place == Place::post_norm || site.direction == Direction::backward) return site.layer;
    return site.layer > 0 ? std::optional<int64_t>(site.layer - 1) : std::nullopt;
}

std::string Model::describe_site(uint32_t code) const {
    if (code == spec::all_finite) return "nowhere";
    if (code == spec::bad_gradient_norm) return "the norm of the gradients, which leaves 32 bits";
    if (code == spec::bad_elsewhere) return "another rank";
    const Site site = site_of(code, parts_.network.layers());
    if (site.place == Place::loss) return "the loss";
    const std::optional<int64_t> layer = layer_of_site(code);
    if (!layer) return "the embeddings (forward)";
    const bool backward = site.direction == Direction::backward,
               attention = (site.place == Place::post_norm) != backward;
    return cat("layer ", *layer, backward ? ", gradient" : ", output", " of its ", attention ? "attention" : "MLP",
               backward ? " (backward)" : " (forward)");
}

}  // namespace unsloth::model
