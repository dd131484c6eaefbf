// Host memory that all processes of one user on a machine have in common, known by what it holds: whoever comes first
// fills a piece, the others read it, and it is gone with the last of them.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "unsloth/core/open_file.h"
#include "unsloth/memory/plan.h"

namespace unsloth::memory {

/// What processes have already of some owner's (a base's) pieces. It stays there while this lives, so that a plan may
/// count on it.
class HeldMemory {
  public:
    explicit HeldMemory(std::string owner);
    const std::string& owner() const { return owner_; }
    /// Bytes that are there of the piece with this content, and of all of them. They are in nobody's free memory.
    int64_t bytes(const std::string& content) const;
    int64_t bytes() const;
    /// The owner's pieces of another plan, which is loaded before the one that counts on this, count as if they were
    /// there.
    void expect(const Plan& common);
    /// Lets go of all.
    void release() { pieces_.clear(), expected_.clear(); }

  private:
    std::string owner_;
    std::map<std::string, Descriptor> pieces_;  ///< by content
    std::map<std::string, int64_t> expected_;   ///< bytes, by content
};

class CommonMemory {
  public:
    /// A piece for each entry of the plan, found with another process or made: readable by `device` as Arena::host's
    /// after fill(). `owner` and an entry's content say what it holds: two that are equal hold the same bytes. Its
    /// pages are of these NUMA nodes, in turns; of the device's own where none is named. What cannot be had in common
    /// is this process' own, and a line in the log says why.
    CommonMemory(Plan plan, const std::string& owner, at::Device device, std::set<int> nodes = {});
    ~CommonMemory();

    /// Calls fill_one(id, memory: uint8 [bytes]) for each piece that nobody has filled, and waits for those that others
    /// are filling; if one of these ends before, it is filled here, and if for so long none of them fills any (it may
    /// be stopped), they are this process' own. Returns how long it did nothing but wait. Interrupted when a signal
    /// asks to stop meanwhile. runtime Error where the system gives no memory that the device can read.
    using Filler = std::function<void(BufferId id, const at::Tensor& memory)>;
    std::chrono::milliseconds fill(const Filler& fill_one,
                                   std::chrono::milliseconds patience = std::chrono::minutes(2));
    /// A piece as it was filled: uint8 [bytes], not to be written.
    at::Tensor tensor(BufferId id) const;
    const Plan& plan() const { return plan_; }
    /// Bytes of the pieces that this process has for itself, of those that it filled for all, and of the others'.
    struct Share {
        int64_t own = 0, filled = 0, found = 0;
    };
    Share share() const;
    /// Whether fill() filled the piece, for itself or for all.
    bool filled_here(BufferId id) const;

  private:
    struct Piece;
    struct Prepared;
    bool prepare(BufferId id, std::deque<Prepared>& ahead);
    void make_own(BufferId id, std::string why);
    void finish(Prepared& prepared, const Filler& fill_one);

    Plan plan_;
    at::Device device_;
    std::set<int> nodes_;
    std::vector<std::shared_ptr<Piece>> pieces_;  ///< by BufferId
    std::string why_own_;                         ///< some are not in common
};

}  // namespace unsloth::memory
