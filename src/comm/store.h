// The ranks' meeting place with keys of its own for every operation, and errors that name who is missing.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/monitor.h"
#include "unsloth/comm/launch.h"

namespace unsloth::comm {

/// A connection to the ranks' store, or, with `serves`, the store; keys of one start do not meet those of another.
/// Throws c10d's errors.
c10::intrusive_ptr<c10d::Store> connect_to_store(const LaunchEnvironment& environment, std::chrono::seconds timeout,
                                                 bool serves);

/// Exchanges of bytes between all ranks. Not thread-safe.
class Exchange {
  public:
    /// Waits for all ranks. runtime Error when they do not come within `timeout`.
    Exchange(const LaunchEnvironment& environment, std::chrono::seconds timeout);

    /// Rank 0, where it serves the store, waits a few seconds until the others have read what they came for.
    ~Exchange();
    Exchange(const Exchange&) = delete;
    Exchange& operator=(const Exchange&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }
    const c10::intrusive_ptr<c10d::Store>& store() const { return store_; }
    Monitor& monitor() { return *monitor_; }
    /// Every rank's host name, by rank.
    const std::vector<std::string>& hosts() const { return hosts_; }

    /// Every rank's bytes by rank; `visit(rank, bytes)` is called in the order of the ranks.
    template <class Visit>
    void all(std::vector<uint8_t> own, const std::string& what, const Visit& visit) {
        begin(std::move(own), what);
        for (int r = 0; r < size_; ++r) visit(r, read(r, what));
        end();
    }

  private:
    std::string key(int64_t number, int rank) const;
    void begin(std::vector<uint8_t> own, const std::string& what);
    std::vector<uint8_t> read(int rank, const std::string& what);
    void end();

    int rank_, size_;
    bool serves_;
    std::chrono::seconds timeout_;
    c10::intrusive_ptr<c10d::Store> store_;
    std::vector<uint8_t> own_;
    int64_t number_ = 0;
    std::vector<std::string> hosts_;
    std::unique_ptr<Monitor> monitor_;  ///< after the ranks have met
};

}  // namespace unsloth::comm
