// Packed layers stored elsewhere, copied into a few slots on the device ahead of the passes that read them.
//
// A layer has one slot for good: what is issued knows it by address, and can be recorded. While a layer is read from
// its slot, those that come after it in the pass are copied into the others; when the layer's slot has been read, the
// next layer that takes the same slot is copied there. So copies wait for two kinds of events (a slot was read), and
// work waits for one (a slot was filled).
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "unsloth/weights/packed_layers_on_disk.h"

namespace unsloth::weights {

/// A packed layer, and the slot that it is read from, uint8 of the same size: whole in pinned host memory or another
/// rank's memory, on the disk except for its small tensors, or nowhere as a whole.
struct StreamedImage {
    at::Tensor image, slot_memory;
    int slot = 0;
    std::optional<DiskImage> disk = std::nullopt;
    std::function<void()> gather = nullptr;  ///< in place of an image: issues what fills the slot
};

class LayerPrefetcher {
  public:
    /// One entry a layer; nullopt: it is on the device. `copies` must have a mark for each slot; `disk` uses it too,
    /// with marks after those, and is nullptr where no packed layer is on the disk.
    LayerPrefetcher(std::unique_ptr<ops::CopyStream> copies, std::vector<std::optional<StreamedImage>> layers,
                    std::unique_ptr<DiskStream> disk = nullptr);

    /// Before a pass that asks for these layers, in this order, streamed or not: fills the slots with those that come
    /// first, and has the context's stream wait for them, so that no copy in flight crosses into a CUDA graph.
    void begin(ops::Context& ctx, const std::vector<int>& pass);
    /// The pass comes to its next layer: work issued from now on finds it in its slot. CheckError where the pass said
    /// otherwise.
    void enter(ops::Context& ctx, int layer);
    /// The slot of the layer that was entered has been read by what is issued so far: it goes to the next layer of the
    /// pass that takes it. enter() does it where the caller did not.
    void release();

    /// What is read from the disk: nullptr where nothing is, and its images.
    DiskStream* disk() const { return disk_.get(); }
    std::vector<const DiskImage*> packed_layers_on_disk() const;

    /// Which layers the slots hold, and the pass's progress. A captured CUDA graph ends in the same state each time.
    struct State {
        std::vector<int> in_slots;
        std::size_t entered = 0;
        bool reading = false;
    };
    const State& state() const { return state_; }
    void assume(State state) { state_ = std::move(state); }
    /// Invalidates the slots: what they hold differs from what is stored elsewhere.
    void forget() { std::fill(state_.in_slots.begin(), state_.in_slots.end(), -1); }

  private:
    const StreamedImage& at(int layer) const { return *layers_[static_cast<std::size_t>(layer)]; }
    void fetch(int layer);
    void wait_for(ops::Context& ctx, int slot);

    std::unique_ptr<ops::CopyStream> copies_;
    std::vector<std::optional<StreamedImage>> layers_;
    std::vector<int> pass_;        ///< its streamed layers
    std::vector<bool> in_flight_;  ///< by slot: a copy that nothing has waited for
    State state_;
    std::unique_ptr<DiskStream> disk_;
};

}  // namespace unsloth::weights
