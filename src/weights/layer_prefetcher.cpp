#include "unsloth/weights/layer_prefetcher.h"

#include <algorithm>

#include "unsloth/core/error.h"
#include "unsloth/ops/profiler.h"

namespace unsloth::weights {

LayerPrefetcher::LayerPrefetcher(std::unique_ptr<ops::CopyStream> copies,
                                 std::vector<std::optional<StreamedImage>> layers, std::unique_ptr<DiskStream> disk)
    : copies_(std::move(copies)), layers_(std::move(layers)), disk_(std::move(disk)) {
    int slots = 0;
    for (const auto& layer : layers_)
        if (layer) slots = std::max(slots, layer->slot + 1);
    in_flight_.resize(static_cast<std::size_t>(slots), false);
    state_.in_slots.resize(static_cast<std::size_t>(slots), -1);
}

std::vector<const DiskImage*> LayerPrefetcher::packed_layers_on_disk() const {
    std::vector<const DiskImage*> images;
    for (const auto& layer : layers_)
        if (layer && layer->disk) images.push_back(&*layer->disk);
    return images;
}

void LayerPrefetcher::fetch(int layer) {
    const auto& [image, slot_memory, slot, disk, gather] = at(layer);
    if (disk) {
        disk_->fetch(*disk, slot_memory, slot);
    } else if (gather) {
        copies_->run(gather);
        copies_->mark(slot);
    } else {
        copies_->copy(image, slot_memory);
        copies_->mark(slot);
    }
    in_flight_[static_cast<std::size_t>(slot)] = true;
    state_.in_slots[static_cast<std::size_t>(slot)] = layer;
}

void LayerPrefetcher::wait_for(ops::Context& ctx, int slot) {
    if (!in_flight_[static_cast<std::size_t>(slot)]) return;
    const ops::Region region(ctx, "wait for weights");                                // the stall, in a profile
    if (at(state_.in_slots[static_cast<std::size_t>(slot)]).disk) disk_->wait(slot);  // else the mark is not set yet
    copies_->compute_waits(slot);
    in_flight_[static_cast<std::size_t>(slot)] = false;
}

void LayerPrefetcher::begin(ops::Context& ctx, const std::vector<int>& pass) {
    pass_.clear();
    std::copy_if(pass.begin(), pass.end(), std::back_inserter(pass_),
                 [&](int layer) { return layers_[static_cast<std::size_t>(layer)].has_value(); });
    state_.entered = 0;
    state_.reading = false;
    std::vector<int> missing;
    std::vector<bool> seen(in_flight_.size(), false);
    for (const int layer : pass_) {
        const auto slot = static_cast<std::size_t>(at(layer).slot);
        if (!seen[slot] && state_.in_slots[slot] != layer) missing.push_back(layer);
        seen[slot] = true;
    }
    if (missing.empty()) return;
    copies_->wait_for_compute();  // the slots may be read by what was issued before
    for (const int layer : missing) fetch(layer);
    for (const int layer : missing) wait_for(ctx, at(layer).slot);
}

void LayerPrefetcher::enter(ops::Context& ctx, int layer) {
    release();
    if (!layers_[static_cast<std::size_t>(layer)]) return;
    UNSLOTH_CHECK(state_.entered < pass_.size() && pass_[state_.entered] == layer, "layer ", layer,
                  " is not the next one of the pass");
    UNSLOTH_CHECK(state_.in_slots[static_cast<std::size_t>(at(layer).slot)] == layer, "layer ", layer,
                  " is not in its slot");
    ++state_.entered;
    state_.reading = true;
    wait_for(ctx, at(layer).slot);
}

void LayerPrefetcher::release() {
    if (!state_.reading) return;
    state_.reading = false;
    const int slot = at(pass_[state_.entered - 1]).slot;
    const auto next = std::find_if(pass_.begin() + static_cast<std::ptrdiff_t>(state_.entered), pass_.end(),
                                   [&](int layer) { return at(layer).slot == slot; });
    if (next == pass_.end() || *next == state_.in_slots[static_cast<std::size_t>(slot)]) return;
    copies_->wait_for_compute();
    fetch(*next);
}

}  // namespace unsloth::weights
