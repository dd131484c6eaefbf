#include "unsloth/model/parameter_store.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "unsloth/core/error.h"

namespace unsloth::model {

using weights::ParameterSlice, weights::ParameterTable, weights::Parameters, weights::Share;

namespace {

constexpr int all_pieces = 2;  // the mark after those of the two staged ones

}  // namespace

ParameterStore::ParameterStore(ops::Context& ctx, Parameters& parameters, comm::Communicator* data_parallel,
                               Pipeline pipeline, const weights::Parameter* tied)
    : ctx_(ctx),
      parameters_(parameters),
      data_parallel_(data_parallel),
      pipeline_(std::move(pipeline)),
      tied_(tied),
      kept_(static_cast<std::size_t>(parameters.table().units())) {
    if (!splits_gradients()) return;
    pieces_.emplace(ctx, all_pieces + 1);
    gradients_.emplace(ctx, ParameterTable::slots);
    if (parameters.far_squares.defined()) far_squares_ = at::zeros({ranks()}, parameters.far_squares.options());
    if (!parameters.sharding().splits_values()) return;
    const ParameterTable& table = parameters.table();
    std::vector<std::optional<weights::StreamedImage>> images;
    for (int unit = 0; unit < table.units(); ++unit) {
        std::optional<weights::StreamedImage>& image = images.emplace_back();
        if (table.unit(unit).elements() == 0) continue;
        image.emplace();
        image->slot_memory = parameters.value_slot(unit);
        image->slot = table.slot_of(unit);
        image->gather = [this, unit] { gather(unit); };
    }
    values_ = std::make_unique<weights::LayerPrefetcher>(std::make_unique<ops::CopyStream>(ctx, ParameterTable::slots),
                                                         std::move(images));
}

std::string ParameterStore::name_of(int unit) const {
    if (unit == weights::embedding_unit) return "embed_tokens";
    return unit == parameters_.table().head() ? "the head" : cat("layers.", weights::layer_of_unit(unit));
}

// --- values --------------------------------------------------------------------------------------------------------

void ParameterStore::gather(int unit) {
    const ParameterTable& table = parameters_.table();
    const weights::WorkingLayout& working = parameters_.working();
    const ParameterSlice whole = table.unit(unit);
    const at::Tensor slot = parameters_.value_slot(unit);
    for (int rank = 0; rank < ranks(); ++rank) {
        const ParameterSlice part = table.slice({rank, ranks()}).with(whole);
        if (part.elements() == 0) continue;
        const at::Tensor piece =
            slot.narrow(0, working.byte_of(part.begin) - working.byte_of(whole.begin), working.bytes(part));
        if (rank == parameters_.share().rank)
            piece.copy_(parameters_.copies_b.narrow(
                0, working.byte_of(part.begin) - working.byte_of(parameters_.own().begin), working.bytes(part)));
        if (data_parallel_ != nullptr)
            data_parallel_->broadcast(piece, rank, cat("the values of ", name_of(unit), " in step ", step_));
    }
}

void ParameterStore::publish(const std::string& what) {
    if (!parameters_.sharding().has_copies()) {
        ++parameters_.version;
        return;
    }
    publish_piece(parameters_.own());
    finish_publishing(what);
}

/// By parameters, which may have types of their own.
void ParameterStore::publish_piece(ParameterSlice piece) {
    const weights::WorkingLayout& working = parameters_.working();
    const at::Tensor& from = parameters_.values_P;
    if (parameters_.copies_b.const_data_ptr() == from.const_data_ptr()) return;
    const int64_t first = working.byte_of(parameters_.copied().begin), own = parameters_.own().begin;
    pieces_->wait_for_compute();
    for (const weights::Parameter& p : parameters_.table().parameters()) {
        ParameterSlice rest = piece.with({p.offset, p.offset + p.elements()});
        while (rest.elements() > 0) {
            const ParameterSlice part{rest.begin,
                                      far() ? std::min(rest.end, rest.begin + Parameters::staged_elements) : rest.end};
            rest.begin = part.end;
            const at::Tensor values = from.narrow(0, part.begin - own, part.elements());
            const at::Tensor to =
                parameters_.copies_b.narrow(0, working.byte_of(part.begin) - first, working.bytes(part));
            if (!far()) {
                to.view(working.type_of(p)).copy_(values);
                continue;
            }
            const int stage = next_stage_;
            next_stage_ ^= 1;
            if (staged_[static_cast<std::size_t>(stage)]) pieces_->host_waits(stage);
            const at::Tensor staged = parameters_.staging.view(at::kByte).narrow(
                0, stage * Parameters::staged_elements * static_cast<int64_t>(sizeof(float)), to.numel());
            staged.view(working.type_of(p)).copy_(values);
            pieces_->copy(staged, to);
            pieces_->mark(stage);
            staged_[static_cast<std::size_t>(stage)] = true;
        }
    }
}

void ParameterStore::finish_publishing(const std::string& what) {
    if (far()) {
        pieces_->mark(all_pieces);
        pieces_->compute_waits(all_pieces);
    }
    if (values_) {
        values_->forget();
    } else if (data_parallel_ != nullptr) {
        const weights::WorkingLayout& working = parameters_.working();
        for (int rank = 0; rank < ranks(); ++rank) {
            const ParameterSlice part = parameters_.table().slice({rank, ranks()});
            if (part.elements() > 0)
                data_parallel_->broadcast(
                    parameters_.copies_b.narrow(0, working.byte_of(part.begin), working.bytes(part)), rank, what);
        }
    }
    ++parameters_.version;
}

// --- gradients -----------------------------------------------------------------------------------------------------

void ParameterStore::begin_step(int64_t step) {
    step_ = step;
    std::fill(kept_.begin(), kept_.end(), false);
    if (parameters_.gradients_P.defined())
        parameters_.gradients_P.zero_();
    else if (!far())
        parameters_.own_gradients_P.zero_();
}

void ParameterStore::begin_pass(const std::vector<int>& read, const std::vector<int>& trained, bool trains) {
    if (values_) values_->begin(ctx_, read);
    if (!trains || !splits_gradients()) return;
    pass_.clear();
    std::copy_if(trained.begin(), trained.end(), std::back_inserter(pass_),
                 [&](int unit) { return parameters_.table().unit(unit).elements() > 0; });
    entered_ = 0;
    in_slots_.fill(-1);
}

void ParameterStore::acquire(int unit) {
    if (values_) values_->enter(ctx_, unit);
}

void ParameterStore::gradients(int unit) {
    const ParameterTable& table = parameters_.table();
    if (!splits_gradients() || table.unit(unit).elements() == 0) return;
    UNSLOTH_CHECK(entered_ < pass_.size() && pass_[entered_] == unit, name_of(unit), " is not the next of the pass");
    ++entered_;
    const int slot = table.slot_of(unit);
    if (std::exchange(in_slots_[static_cast<std::size_t>(slot)], unit) == unit) return;
    if (leaving_[static_cast<std::size_t>(slot)]) gradients_->compute_waits(slot);
    parameters_.gradient_slot(unit).zero_();
}

void ParameterStore::release(int unit) {
    for (std::size_t i = 0; i < buckets_.size(); ++i)
        if (buckets_[i].unit == unit) complete_[i].record();
    if (!splits_gradients()) return;
    if (unit == weights::embedding_unit && tied_ != nullptr) return;  // reduce() begins with those of both ends
    const ParameterTable& table = parameters_.table();
    const auto next = std::find_if(pass_.begin() + static_cast<std::ptrdiff_t>(entered_), pass_.end(),
                                   [&](int other) { return table.slot_of(other) == table.slot_of(unit); });
    if (next == pass_.end() || *next != unit) send_gradients(unit);
}

/// They are complete, and the slot is free for another unit's.
void ParameterStore::send_gradients(int unit) {
    const ParameterTable& table = parameters_.table();
    const ParameterSlice whole = table.unit(unit);
    if (whole.elements() == 0) return;
    const int slot = table.slot_of(unit);
    const at::Tensor made = parameters_.gradient_slot(unit);
    const bool first = !kept_[static_cast<std::size_t>(unit)];
    kept_[static_cast<std::size_t>(unit)] = true;
    gradients_->wait_for_compute();
    gradients_->run([&] {
        for (int rank = 0; rank < ranks(); ++rank) {
            const ParameterSlice part = table.slice({rank, ranks()}).with(whole);
            if (part.elements() == 0) continue;
            const at::Tensor sums = made.narrow(0, part.begin - whole.begin, part.elements());
            if (data_parallel_ != nullptr)
                data_parallel_->reduce(sums, rank, cat("the gradients of ", name_of(unit), " in step ", step_));
            if (rank == parameters_.share().rank) keep(unit, sums, part, first);
        }
    });
    gradients_->mark(slot);
    leaving_[static_cast<std::size_t>(slot)] = true;
}

/// Adds them to those of the micro-batches before. Sums in host memory come back for that: the device adds.
void ParameterStore::keep(int unit, const at::Tensor& sums, ParameterSlice part, bool first) {
    const ParameterTable& table = parameters_.table();
    const at::Tensor own = parameters_.own_gradients_P.narrow(0, part.begin - parameters_.own().begin, part.elements());
    if (!far()) {
        own.add_(sums);
        return;
    }
    if (!first) {
        const at::Tensor before = parameters_.far_sums.narrow(0, 0, part.elements());
        before.copy_(own, /*non_blocking=*/true);
        sums.add_(before);
    }
    own.copy_(sums, /*non_blocking=*/true);
    int64_t chunk = 0;
    for (int before = 0; before < unit; ++before)
        chunk += Parameters::far_chunks(parameters_.own().with(table.unit(before)));
    ops::gradient_squares(ctx_, sums, parameters_.far_squares.narrow(0, chunk, Parameters::far_chunks(part)));
}

void ParameterStore::end_passes(bool any) {
    if (!any)
        for (ops::Event& event : complete_) event.record();
    wait_for_gradients();
}

/// Later work sees this rank's sums of all sent gradients; where these are in host memory, the host does, too.
void ParameterStore::wait_for_gradients() {
    for (int slot = 0; slot < ParameterTable::slots; ++slot) {
        if (!leaving_[static_cast<std::size_t>(slot)]) continue;
        gradients_->compute_waits(slot);
        if (far()) gradients_->host_waits(slot);
        leaving_[static_cast<std::size_t>(slot)] = false;
    }
}

}  // namespace unsloth::model
