#include "train/update.h"

#include <algorithm>
#include <cstring>

#include "unsloth/core/error.h"

namespace unsloth::train {

using weights::ParameterSlice, weights::Parameters;

Update::Update(ops::Context& ctx, model::Model& model, const ops::AdamwSettings& settings, comm::Communicator* ranks)
    : ctx_(ctx), model_(model), parameters_(*model.parameters()), settings_(settings), ranks_(ranks) {
    if (parameters_.far_squares.defined())
        rank_sums_ = at::zeros({ranks == nullptr ? 1 : ranks->size()}, parameters_.far_squares.options());
}

void Update::measure_norm(int64_t step) {
    const std::string what = cat("the gradient norm of step ", step);
    if (rank_sums_.defined()) {  // what left for the host was squared on its way
        const at::Tensor own = rank_sums_.narrow(0, ranks_ == nullptr ? 0 : ranks_->rank(), 1);
        at::Tensor sum = own;
        at::sum_out(sum, squares(), {0}, /*keepdim=*/true);
        if (shared()) ranks_->all_gather(own, rank_sums_, what);
        return ops::finish_gradient_norm(ctx_, rank_sums_);
    }
    if (!shared()) {
        const at::Tensor& all =
            parameters_.gradients_P.defined() ? parameters_.gradients_P : parameters_.own_gradients_P;
        return ops::gradient_norm(ctx_, all, parameters_.norm_scratch);
    }
    const ParameterSlice own = parameters_.table().padded_slice(parameters_.share());
    const at::Tensor sums = parameters_.norm_scratch.view(at::kDouble);
    const at::Tensor own_sums =
        sums.narrow(0, own.begin / ops::gradient_norm_chunk, own.elements() / ops::gradient_norm_chunk);
    ops::gradient_squares(ctx_, parameters_.own_gradients_P, own_sums);
    ranks_->all_gather(own_sums, sums, what);
    ops::finish_gradient_norm(ctx_, sums);
}

at::Tensor Update::squares(int64_t from) {
    const ParameterSlice own = parameters_.own();
    if (parameters_.far_squares.defined()) {  // made on their way to the host, by unit
        int64_t before = 0;
        for (int unit = 0; unit < parameters_.table().units(); ++unit)
            if (const ParameterSlice whole = parameters_.table().unit(unit); whole.end <= from)
                before += Parameters::far_chunks(own.with(whole));
        return parameters_.far_squares.narrow(0, before, parameters_.far_squares.numel() - before);
    }
    const int64_t first = std::clamp<int64_t>(from - own.begin, 0, own.elements()),
                  counted = parameters_.own_gradients_P.numel() - first;
    const at::Tensor squares =
        parameters_.norm_scratch.view(at::kDouble).narrow(0, 0, Parameters::far_chunks({0, counted}));
    ops::gradient_squares(ctx_, parameters_.own_gradients_P.narrow(0, first, counted), squares);
    return squares;
}

void Update::apply(const at::Tensor& device_outcome, const spec::StepScalars& scalars, int64_t step) {
    const std::string what = cat("the parameters of step ", step);
    if (parameters_.holding().on_host)
        apply_on_host(device_outcome, scalars);
    else
        ops::adamw_step(ctx_, parameters_.state(), settings_);
    if (parameters_.holding().has_copies()) {
        if (!parameters_.holding().on_host) model_.streams()->publish_piece(parameters_.own());
        return model_.streams()->finish_publishing(what);
    }
    if (shared()) {
        const ParameterSlice own = parameters_.table().padded_slice(parameters_.share());
        ranks_->all_gather(parameters_.values_P.narrow(0, own.begin, own.elements()), parameters_.values_P, what);
    }
    model_.parameters_changed();
}

/// A piece after the other, so that its values are on their way to the device while the next is made.
void Update::apply_on_host(const at::Tensor& device_outcome, const spec::StepScalars& scalars) {
    const at::Tensor outcome = device_outcome.cpu();  // waits for the device
    std::memcpy(&host_outcome_, outcome.const_data_ptr(), sizeof host_outcome_);
    host_.scalars = &scalars;
    host_.outcome = &host_outcome_;
    const ops::AdamwState& all = parameters_.state();
    const int64_t begin = parameters_.own().begin, elements = all.params_P.numel();
    for (int64_t first = 0; first < elements; first += Parameters::staged_elements) {
        const int64_t count = std::min(Parameters::staged_elements, elements - first);
        const int64_t block = first / ops::optimizer_block, blocks = count / ops::optimizer_block;
        ops::AdamwState piece = all;
        piece.params_P = all.params_P.narrow(0, first, count);
        piece.grads_P = all.grads_P.narrow(0, first, count);
        piece.flags_b = all.flags_b.narrow(0, block, blocks);
        piece.slot_b = all.slot_b.narrow(0, block, blocks);
        ops::adamw_step(host_, piece, settings_);
        model_.streams()->publish_piece({begin + first, begin + first + count});
    }
    host_.scalars = nullptr;
    host_.outcome = nullptr;
}

}  // namespace unsloth::train
