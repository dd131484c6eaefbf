#include "unsloth/spec/model_flops.h"

#include <algorithm>

namespace unsloth::spec {
namespace {

/// Pairs of a position and one that it sees, in a sequence; `window` 0: all before it.
double pairs_of(int64_t length, int64_t window) {
    const int64_t rising = window == 0 ? length : std::min(length, window);
    return static_cast<double>(rising) * static_cast<double>(rising + 1) / 2 +
           static_cast<double>(length - rising) * static_cast<double>(rising);
}

}  // namespace

ModelFlops::ModelFlops(const ModelSpec& model, const TrainedShare& trained) : model_(model) {
    double weights = 0;  // that a token is multiplied by
    double states = 0;   // and values of states, whose gradients are wanted as a trained weight's
    for (int64_t layer = 0; layer < model.num_layers; ++layer) {
        for (const Projection p : model.projections_of(layer))
            weights += static_cast<double>(model.out_features(p) * model.in_features(p));
        if (model.has_delta(layer)) states += 3 * static_cast<double>(model.delta->values() * model.delta->key_dim);
        if (!model.has_experts(layer)) continue;
        const ExpertsSpec& experts = *model.experts;
        weights +=
            static_cast<double>(model.hidden_size * (3 * experts.top_k * experts.intermediate_size + experts.count));
    }
    token_ = (trained.layers ? 6 : 4) * weights + 6 * states + 6 * static_cast<double>(trained.adapter_parameters);
    target_ = (trained.head ? 6 : 4) * static_cast<double>(model.vocab_size * model.hidden_size);
}

double ModelFlops::of(std::span<const int32_t> segments, int64_t targets, std::span<const int32_t> before) const {
    if (segments.empty()) return 0;
    double pairs = 0;
    for (std::size_t s = 0; s + 1 < segments.size(); ++s) {
        const int64_t first = before.empty() ? 0 : before[s], length = first + segments[s + 1] - segments[s];
        for (const LayerSpec& layer : model_.layers)
            if (!layer.delta) pairs += pairs_of(length, layer.window) - pairs_of(first, layer.window);
    }
    return token_ * static_cast<double>(segments.back()) + target_ * static_cast<double>(targets) +
           12 * static_cast<double>(model_.q_size()) * pairs;
}

}  // namespace unsloth::spec
