#include "train/layer_norm_meter.h"

#include <algorithm>
#include <cmath>

#include "unsloth/core/error.h"

namespace unsloth::train {
namespace {

/// What completes with this unit (model/gradient_buckets.h).
std::string unit_name(int unit, int layers) {
    if (unit == weights::embedding_unit) return "embed_tokens";
    return unit == weights::head_unit(layers) ? "head" : cat("layers.", weights::layer_of_unit(unit));
}

}  // namespace

LayerNormMeter::LayerNormMeter(ops::Context& ctx, const model::Model& model)
    : ctx_(ctx),
      model_(model),
      stretches_(model::cut_gradients(model.trained_by_all(), /*most_bytes=*/1)),  // no byte to join: a layer each
      common_(weights::Parameters::common(model.trained_by_all(), model.store()->parameters().table(),
                                          config::Optimizer::adamw_torch, &ops::AdamwState::grads_P)),
      norms_(at::zeros({static_cast<int64_t>(stretches_.size())}, at::TensorOptions(at::kFloat).device(ctx.device()))) {
}

at::Tensor LayerNormMeter::make_host() const {
    return at::zeros(norms_.sizes(), at::TensorOptions(at::kFloat).pinned_memory(ctx_.is_cuda()));
}

void LayerNormMeter::issue(const at::Tensor& host, int64_t step) {
    const model::ParameterStore& store = *model_.store();
    const weights::Parameters& parameters = store.parameters();
    const weights::ParameterSlice own = parameters.own();
    const auto measure = [](at::Tensor norm, const at::Tensor& values) {
        if (values.device() == norm.device())
            at::linalg_vector_norm_out(norm, values);
        else
            norm.copy_(at::linalg_vector_norm(values));
    };
    for (std::size_t i = 0; i < stretches_.size(); ++i) {
        at::Tensor norm = norms_.select(0, static_cast<int64_t>(i));
        norm.zero_();
        if (store.repeats_tied() && stretches_[i].unit == weights::embedding_unit) continue;
        for (const weights::CommonStretch& common : common_) {
            const int64_t here = common.own - common.all;  // where this rank has an element
            const int64_t begin = std::max({stretches_[i].begin, common.all, own.begin - here}),
                          end = std::min({stretches_[i].end, common.all + common.elements, own.end - here});
            if (begin < end) measure(norm, parameters.own_gradients_P.narrow(0, begin + here - own.begin, end - begin));
        }
    }
    for (comm::Communicator* const ranks : store.others()) {
        norms_.square_();
        ranks->all_reduce(norms_, cat("the layers' gradient norms of step ", step));
        norms_.sqrt_();
    }
    host.copy_(norms_, /*non_blocking=*/true);
}

/// What one unit completes may be in several stretches.
std::vector<std::pair<std::string, double>> LayerNormMeter::read(const at::Tensor& host, double loss_scale) const {
    std::vector<std::pair<std::string, double>> norms;
    for (std::size_t i = stretches_.size(); i-- > 0;) {
        const std::string name = unit_name(stretches_[i].unit, static_cast<int>(model_.spec().num_layers));
        const double norm = host.const_data_ptr<float>()[i] / loss_scale;
        if (!norms.empty() && norms.back().first == name)
            norms.back().second = std::hypot(norms.back().second, norm);
        else
            norms.emplace_back(name, norm);
    }
    return norms;
}

}  // namespace unsloth::train
