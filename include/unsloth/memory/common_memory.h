// Host memory shared by all processes of one user on a machine, identified by its content: the first process fills a
// piece, the others read it, and it is freed with the last of them.
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
    /// Allocated bytes of the piece with this content, and of all pieces. They do not count as free memory.
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
    /// A piece for each entry of the plan, found with another process or allocated: `device` can read it like
    /// Arena::host's after fill(). `owner` and an entry's content say what it holds: two that are equal hold the same
    /// bytes. Its pages alternate between these NUMA nodes; none named: the device's own. Memory that cannot be shared
    /// is private to this process, and a log line says why.
    CommonMemory(Plan plan, const std::string& owner, at::Device device, std::set<int> nodes = {});
    ~CommonMemory();

    /// Calls fill_one(id, memory: uint8 [bytes]) for each piece that no process has filled, and waits for those that
    /// others are filling. If one of these ends before, it is filled here; if none of them fills any for too long (it
    /// may be stopped), they become private to this process. Returns how long it only waited. Interrupted when a signal
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
    std::string why_own_;                         ///< some are not shared
};

}  // namespace unsloth::memory
