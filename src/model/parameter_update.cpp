// The end of a step: sums over ranks, the norm of all gradients, the optimizer. One path for one rank and for those
// that shard, for states on the device and in host memory.
#include <algorithm>
#include <cstring>

#include "unsloth/core/error.h"
#include "unsloth/model/parameter_store.h"

namespace unsloth::model {

using weights::ParameterSlice, weights::Parameters;

void ParameterStore::join(comm::Group& group, int64_t bucket_bytes) {
    replicas_ = pipeline_.alone() ? &group.all() : pipeline_.mesh()->stage();
    if (!pipeline_.alone()) {
        const auto squares = at::TensorOptions(at::kDouble).device(ctx_.device());
        stage_squares_ = at::zeros({pipeline_.stage().size}, squares);
        if (ranks() > 1) slice_squares_ = at::zeros({ranks()}, squares);
    }
    // Slices are summed after the backward pass, whole.
    if (bucket_bytes == 0 || ranks() > 1 || splits_gradients()) return;
    UNSLOTH_CHECK(step_ == 0, "gradients are cut before the first step, whose passes are recorded with the cuts");
    buckets_ = cut_gradients(parameters_.table(), bucket_bytes);
    for (std::size_t i = 0; i < buckets_.size(); ++i) complete_.emplace_back(ctx_);
}

std::vector<comm::Communicator*> ParameterStore::others() const {
    std::vector<comm::Communicator*> all;
    if (shares_ && !pipeline_.alone()) all.push_back(pipeline_.mesh()->pp());
    if (slices() != nullptr) all.push_back(slices());
    return all;
}

// --- sums ----------------------------------------------------------------------------------------------------------

/// After the sums over each stage's ranks, or, where each of these then has the sums of its slice alone, or in host
/// memory, before.
void ParameterStore::reduce_tied(int64_t step) {
    if (replicas_ != nullptr) replicas_->join();
    if (tied_ == nullptr || pipeline_.mesh()->ends() == nullptr) return;
    pipeline_.mesh()->ends()->all_reduce(parameters_.gradient(*tied_), cat("the embeddings' gradients of step ", step));
}

void ParameterStore::reduce(int64_t step) {
    const std::string what = cat("the gradients of step ", step);
    const at::Tensor& gradients_P = parameters_.gradients_P;
    if (ranks() > 1 || splits_gradients()) reduce_tied(step);
    if (splits_gradients()) {  // they were summed when they left, but for those of both ends
        if (tied_ != nullptr) send_gradients(weights::embedding_unit);
        wait_for_gradients();
    } else if (ranks() > 1) {
        const ParameterSlice own = parameters_.table().padded_slice(parameters_.share());
        replicas_->reduce_scatter(gradients_P, gradients_P.narrow(0, own.begin, own.elements()), what);
    } else if (replicas_ == nullptr) {
        // One rank has these parameters.
    } else if (buckets_.empty()) {
        replicas_->all_reduce(gradients_P, what);
    } else {
        for (std::size_t i = 0; i < buckets_.size(); ++i)
            replicas_->all_reduce_async(
                gradients_P.narrow(0, buckets_[i].begin, buckets_[i].end - buckets_[i].begin),
                [&] { complete_[i].wait(); }, cat(what, ", bucket ", i + 1, " of ", buckets_.size()));
    }
}

void ParameterStore::finish_reduce(int64_t step) {
    if (ranks() == 1 && !splits_gradients()) reduce_tied(step);
}

// --- norm ----------------------------------------------------------------------------------------------------------

void ParameterStore::norm(int64_t step) {
    const std::string what = cat("the gradient norm of step ", step);
    if (!pipeline_.alone() && shares_) return norm_of_stages(what);
    if (far_squares_.defined()) return norm_of_far_sums(what);
    if (slices() == nullptr) {
        const at::Tensor& all =
            parameters_.gradients_P.defined() ? parameters_.gradients_P : parameters_.own_gradients_P;
        return ops::gradient_norm(ctx_, all, parameters_.norm_scratch);
    }
    const ParameterSlice own = parameters_.table().padded_slice(parameters_.share());
    const at::Tensor sums = parameters_.norm_scratch.view(at::kDouble);
    const at::Tensor own_sums =
        sums.narrow(0, own.begin / ops::gradient_norm_chunk, own.elements() / ops::gradient_norm_chunk);
    ops::gradient_squares(ctx_, parameters_.own_gradients_P, own_sums);
    slices()->all_gather(own_sums, sums, what);
    ops::finish_gradient_norm(ctx_, sums);
}

/// What left for the host was squared on its way.
void ParameterStore::norm_of_far_sums(const std::string& what) {
    const at::Tensor own = far_squares_.narrow(0, parameters_.share().rank, 1);
    at::Tensor sum = own;
    at::sum_out(sum, squares(), {0}, /*keepdim=*/true);
    if (slices() != nullptr) slices()->all_gather(own, far_squares_, what);
    ops::finish_gradient_norm(ctx_, far_squares_);
}

/// Each stage has the sum of squares of its own parameters, or each of its ranks that of a slice; tied embeddings count
/// once.
void ParameterStore::norm_of_stages(const std::string& what) {
    at::Tensor own = stage_squares_.select(0, pipeline_.stage().rank);
    own.zero_();
    // The embeddings come first.
    if (const at::Tensor squares = this->squares(repeats_tied() ? parameters_.table().end_of(*tied_) : 0);
        squares.numel() > 0)
        at::sum_out(own, squares, at::IntArrayRef{0});
    if (slices() != nullptr) {
        slices()->all_gather(own.unsqueeze(0), slice_squares_, what);
        at::sum_out(own, slice_squares_, at::IntArrayRef{0});
    }
    pipeline_.mesh()->pp()->all_gather(own.unsqueeze(0), stage_squares_, what);
    ops::finish_gradient_norm(ctx_, stage_squares_);
}

/// fp64 sums of squares of pieces of the gradients that this rank has, from an element of the flat layout on where a
/// unit begins.
at::Tensor ParameterStore::squares(int64_t from) {
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

// --- update --------------------------------------------------------------------------------------------------------

void ParameterStore::update(const ops::AdamwSettings& settings, const at::Tensor& device_outcome,
                            const spec::StepScalars& scalars, int64_t step) {
    const std::string what = cat("the parameters of step ", step);
    const weights::ShardingPolicy& sharding = parameters_.sharding();
    if (sharding.on_host())
        update_on_host(settings, device_outcome, scalars);
    else
        ops::adamw_step(ctx_, parameters_.state(), settings);
    if (sharding.has_copies()) {
        if (!sharding.on_host()) publish_piece(parameters_.own());
        return finish_publishing(what);
    }
    if (slices() != nullptr) {
        const ParameterSlice own = parameters_.table().padded_slice(parameters_.share());
        slices()->all_gather(parameters_.values_P.narrow(0, own.begin, own.elements()), parameters_.values_P, what);
    }
    ++parameters_.version;
}

/// A piece after the other, so that its values are on their way to the device while the next is made.
void ParameterStore::update_on_host(const ops::AdamwSettings& settings, const at::Tensor& device_outcome,
                                    const spec::StepScalars& scalars) {
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
        ops::adamw_step(host_, piece, settings);
        publish_piece({begin + first, begin + first + count});
    }
    host_.scalars = nullptr;
    host_.outcome = nullptr;
}

}  // namespace unsloth::model
