// Places of what gated delta nets keep of sequences: one of each that is running, and snapshots of beginnings, which
// others go on from.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "unsloth/generate/block_allocator.h"

namespace unsloth::generate {

class StatePlaces {
  public:
    using PrefixHash = BlockAllocator::PrefixHash;

    /// Sequences have places [0, sequences), snapshots those that follow.
    StatePlaces(int64_t sequences, int64_t snapshots)
        : taken_(static_cast<std::size_t>(sequences)),
          first_(static_cast<int32_t>(sequences)),
          snapshots_(static_cast<std::size_t>(snapshots)) {}

    bool keeps_snapshots() const { return !snapshots_.empty(); }

    /// A place for a sequence. CheckError where all are taken.
    int32_t take();
    void give_back(int32_t place);

    bool has(PrefixHash text) const { return of_text_.contains(text); }
    /// The snapshot of a text that has one, which stays until release().
    int32_t hold(PrefixHash text);
    /// A place for a new snapshot, which stays until release(): an empty one, or the one not used for longest. Nothing
    /// where all are held.
    std::optional<int32_t> allocate();
    /// An allocated place has the state after this text, and is released.
    void commit(int32_t place, PrefixHash text);
    void release(int32_t place) { --at(place).holders; }

  private:
    struct Snapshot {
        PrefixHash text = 0;  ///< 0: none, or not yet
        int64_t holders = 0;
        uint64_t used = 0;
    };
    Snapshot& at(int32_t place) { return snapshots_.at(static_cast<std::size_t>(place - first_)); }
    void forget(Snapshot& snapshot);

    std::vector<bool> taken_;
    int32_t first_;
    std::vector<Snapshot> snapshots_;
    std::unordered_map<PrefixHash, int32_t> of_text_;
    uint64_t uses_ = 0;
};

}  // namespace unsloth::generate
