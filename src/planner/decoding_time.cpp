#include "unsloth/planner/decoding_time.h"

#include <algorithm>

namespace unsloth::planner {
namespace {

constexpr double tera = 1e12, giga = 1e9, value_bytes = 2, state_value_bytes = 4;

/// By 16-bit weights: as long as they take to be read at least.
double dense_ms(const Card& card, double parameters, double tokens) {
    return 1e3 * std::max(2 * parameters * tokens / (rate_at(card.products, tokens) * tera),
                          value_bytes * parameters / (card.copy * giga));
}

}  // namespace

std::optional<DecodingTime> DecodingTime::of(const Card& card, const spec::ModelSpec& model, bool in_4bit) {
    if (card.products.empty() || (in_4bit && card.nf4_products.empty())) return std::nullopt;
    const auto size = [](int64_t a, int64_t b) { return static_cast<double>(a) * static_cast<double>(b); };
    DecodingTime time;
    time.card_ = card;
    time.in_4bit_ = in_4bit;
    for (int64_t layer = 0; layer < model.num_layers; ++layer) {
        for (const spec::Projection p : model.projections_of(layer))
            if (!spec::is_of_mlp(p)) time.layer_parameters_ += size(model.out_features(p), model.in_features(p));
        if (model.has_delta(layer)) {
            time.state_bytes_ += 2 * state_value_bytes * size(model.delta->values(), model.delta->key_dim);
        } else {
            time.key_bytes_ += 2 * value_bytes * static_cast<double>(model.kv_size());
        }
    }
    time.layer_parameters_ += size(model.num_layers, model.hidden_size) * 3 * model.active_intermediate_size();
    time.head_parameters_ = size(model.vocab_size, model.hidden_size);
    return time;
}

double DecodingTime::pass_ms(int64_t tokens, int64_t rows, int64_t keys) const {
    const auto count = static_cast<double>(tokens);
    const double layers = in_4bit_ ? layer_parameters_ / giga * rate_at(card_.nf4_products, count)
                                   : dense_ms(card_, layer_parameters_, count);
    return layers + dense_ms(card_, head_parameters_, static_cast<double>(std::max<int64_t>(rows, 1))) +
           1e3 * (key_bytes_ * static_cast<double>(keys) + state_bytes_ * static_cast<double>(rows)) /
               (card_.copy * giga);
}

}  // namespace unsloth::planner
