// Legend: T tokens, V vocabulary, n rows with a target, C rows of a chunk.
#include "unsloth/model/model.h"

#include <algorithm>

#include "unsloth/core/error.h"
#include "unsloth/model/outer_layers.h"
#include "unsloth/ops/profiler.h"
#include "unsloth/spec/finite_sites.h"

namespace unsloth::model {

Model::Model(ops::Context& ctx, ModelParts parts) : ctx_(ctx), parts_(std::move(parts)) {
    const Network& network = parts_.network;
    route_ = {.layers = network.layers(),
              .lowest_layer = network.lowest_trained_layer(),
              .embedding_backward = network.trains_embedding()};
    for (std::unique_ptr<Activations>& activations : parts_.activations)
        micro_batches_.push_back(
            std::make_unique<MicroBatch>(ctx_, network.spec, std::move(activations), route_.lowest_layer, counts_));
    ctx_.workspace = micro_batches_.front()->activations().workspace();
}

void Model::parameters_changed() {
    if (parameters() != nullptr) ++parameters()->version;
}

GradientBuckets& Model::cut_gradients(int64_t most_bytes) {
    UNSLOTH_CHECK(recorded_.empty() && parameters() != nullptr, "gradients are cut before the first step");
    buckets_ = std::make_unique<GradientBuckets>(ctx_, parameters()->table(), spec().num_layers, most_bytes);
    return *buckets_;
}

bool Model::records() const {
    return parts_.records && ctx_.is_cuda() && !on_module && ctx_.profiler == nullptr;
}

void Model::reached(int level) {
    if (buckets_ != nullptr) buckets_->reached(level);
}

LayerContext Model::layer_context(int layer, const MicroBatch& micro) {
    const Network& network = parts_.network;
    const TokenInputs& inputs = micro.inputs();
    const Scratch& scratch = micro.activations().scratch();
    const GroupContext group{ctx_,
                             network.tp,
                             network.layout,
                             layer,
                             scope_ == PolicyScope::policy ? network.adapters.get() : nullptr,
                             network.parameters.get(),
                             network.full_finetuning,
                             inputs.row_T.defined() ? network.lora_dropout : 0.0,
                             inputs.row_T,
                             inputs.offset_T,
                             scratch.dropped,
                             on_module ? &on_module : nullptr};
    return {network.own, group, inputs, scratch, counts_};
}

// --- passes --------------------------------------------------------------------------------------------------------

/// Follows the itinerary, a stretch of like actions at a time: every pass goes through this loop.
void Model::walk(const Itinerary& actions, bool trains) {
    parts_.network.pager->begin(ctx_, layers_of(actions));
    for (std::size_t first = 0, end = 0; first < actions.size(); first = end) {
        end = stretch_end(actions, first);
        const auto [part, direction, micro, layer] = actions[first];
        const bool forward = direction == Direction::forward, layers = part == Action::Part::layer;
        const ops::Region region(ctx_, part == Action::Part::head ? "head"
                                       : forward                  ? "forward"
                                       : layers                   ? "backward"
                                                                  : "embedding");
        const auto stretch = [&] {
            for (std::size_t i = first; i < end; ++i) act(actions[i], trains);
        };
        if (layers) {
            recorded_.issue(ctx_, direction, *parts_.network.pager, counts_, stretch);
        } else {
            stretch();
        }
    }
}

/// One part of the network, one way, for one micro-batch: makes its weights ready, moves what was kept, and says which
/// gradients are complete.
void Model::act(const Action& action, bool trains) {
    const Network& network = parts_.network;
    const int layer = action.layer;
    MicroBatch& micro = *micro_batches_[static_cast<std::size_t>(action.micro)];
    const Activations& a = micro.activations();
    Offload* const offload = trains ? micro.offload() : nullptr;
    const bool forward = action.direction == Direction::forward;
    switch (action.part) {
        case Action::Part::embedding:
            if (forward) {
                embed(ctx_, network, micro, trains && network.noise_alpha > 0.0);
                if (on_module) on_module("model.embed_tokens", a.layer(0).x_TD);
            } else {
                embedding_backward(ctx_, network, micro);
                reached(-1);
            }
            return;
        case Action::Part::head:
            head_forward_backward(ctx_, network, micro, *objective_);
            reached(route_.layers);
            return;
        case Action::Part::layer:
            break;
    }
    if (offload != nullptr) forward ? offload->before_forward(layer) : offload->before_backward(layer);
    const weights::LayerWeights& w = network.pager->ready(ctx_, layer, micro.tokens());
    if (forward) {
        layer_forward(layer_context(layer, micro), w, a.layer(layer), a.output_of(layer));
        if (offload != nullptr) offload->after_forward(layer);
        if (on_module) on_module(cat("model.layers.", layer), a.output_of(layer));
    } else {
        const bool input_gradient = layer > route_.lowest_layer || route_.embedding_backward;
        layer_backward(layer_context(layer, micro), w, a.layer(layer),
                       a.run().layers[static_cast<std::size_t>(layer)].keep, input_gradient);
        reached(layer);
    }
}

void Model::train(std::span<const data::Batch> batches, HeadObjective& objective) {
    UNSLOTH_CHECK(batches.size() <= micro_batches_.size(), batches.size(), " micro-batches, ", micro_batches_.size(),
                  " planned in flight");
    std::vector<const MicroBatch*> in_flight;
    for (const data::Batch& batch : batches) {
        if (batch.labels == 0) continue;  // the last of a step, where the ranks have not as many rows
        MicroBatch& micro = *micro_batches_[in_flight.size()];
        micro.upload(batch);
        objective.upload(batch, micro);
        const Network& network = parts_.network;
        if (network.lora_dropout > 0.0 || network.noise_alpha > 0.0) micro.upload_rows(batch);
        if (network.noise_alpha > 0.0) micro.upload_noise(batch, network.noise_alpha);
        if (route_.embedding_backward) micro.upload_token_order(batch);
        in_flight.push_back(&micro);
    }
    const auto pass_over = [&] {
        for (std::size_t i = in_flight.size(); i < batches.size(); ++i) objective.pass_over(ctx_);
    };
    if (in_flight.empty()) {
        pass_over();
        if (buckets_ != nullptr) buckets_->reached_all();
        return;
    }
    if (records()) {
        recorded_.choose(ctx_, in_flight);
    } else {
        recorded_.choose_none();
    }
    parts_.network.refresh(ctx_);
    route_.micro_batches = static_cast<int>(in_flight.size());
    objective_ = &objective;
    walk(training_itinerary(route_), /*trains=*/true);
    objective_ = nullptr;
    pass_over();
}

// --- without a backward pass ---------------------------------------------------------------------------------------

at::Tensor Model::score(const data::Batch& batch, const OnLogits& on_logits, PolicyScope scope) {
    if (batch.labels == 0) return at::empty({0}, at::kFloat);
    scope_ = scope;
    MicroBatch& micro = *micro_batches_.front();
    micro.upload(batch);
    recorded_.choose_none();
    parts_.network.refresh(ctx_);
    walk(forward_itinerary(route_.layers), /*trains=*/false);
    scope_ = PolicyScope::policy;
    const HeadBuffers& head = micro.activations().head();
    const int64_t chunk = head.logits_CV.size(0);
    gather_head_rows(ctx_, parts_.network, micro);
    if (on_module) on_module("model.norm", head.h_nD.narrow(0, 0, batch.labels));
    for (int64_t first = 0; first < batch.labels; first += chunk) {
        const int64_t rows = std::min(chunk, batch.labels - first);
        const at::Tensor logits_CV = head_logits(ctx_, parts_.network, micro, first, rows);
        head_loss(ctx_, parts_.network, micro, first, logits_CV, LogitsGradient::none);
        if (on_logits) on_logits(first, logits_CV);
    }
    // A copy on the CPU too: the buffer's bytes serve the next forward pass.
    return head.loss_n.narrow(0, 0, batch.labels).to(at::kCPU, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
}

void Model::continue_rows(const CachedPass& pass, const OnLogits& on_logits) {
    UNSLOTH_CHECK(parts_.network.tp.alone(), "a rank's logits are a slice of the vocabulary");
    MicroBatch& micro = *micro_batches_.front();
    micro.upload(pass.batch);
    micro.continue_rows(pass.batch, pass.slots_T, pass.rows);
    // In a training run recordings are for training's passes.
    if (records() && !sizes().training) {
        recorded_.choose(ctx_, {&micro});
    } else {
        recorded_.choose_none();
    }
    parts_.network.refresh(ctx_);
    walk(forward_itinerary(route_.layers), /*trains=*/false);
    if (pass.batch.labels == 0) return;
    gather_head_rows(ctx_, parts_.network, micro);
    const int64_t chunk = micro.activations().head().logits_CV.size(0);
    for (int64_t first = 0; first < pass.batch.labels; first += chunk)
        on_logits(first, head_logits(ctx_, parts_.network, micro, first, std::min(chunk, pass.batch.labels - first)));
}

std::optional<int64_t> Model::layer_of_site(uint32_t code) const {
    const auto layers = static_cast<uint32_t>(spec().num_layers);
    if (code == 0 || code == 2 * layers + 1 || code > 4 * layers + 1) return std::nullopt;
    return code <= 2 * layers ? (code - 1) / 2 : layers - 1 - (code - 2 * layers - 2) / 2;
}

std::string Model::describe_site(uint32_t code) const {
    const auto layers = static_cast<uint32_t>(spec().num_layers);
    if (code == spec::all_finite) return "nowhere";
    if (code == spec::bad_gradient_norm) return "the norm of the gradients, which leaves 32 bits";
    if (code == spec::bad_elsewhere) return "another rank";
    // What enters a layer is what the one before made: a reader should look there.
    if (code == 0) return "the embeddings (forward)";
    if (code <= 2 * layers)
        return cat("layer ", *layer_of_site(code), ", output of its ", code % 2 == 0 ? "MLP" : "attention",
                   " (forward)");
    if (code == 2 * layers + 1) return "the loss";
    return cat("layer ", *layer_of_site(code), ", gradient of its ", code % 2 == 0 ? "MLP" : "attention",
               " (backward)");
}

}  // namespace unsloth::model
