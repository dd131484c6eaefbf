// Exchanges between all ranks through their store, with errors that name who is missing.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/monitor.h"
#include "comm/rendezvous.h"

namespace unsloth::comm {

/// Exchanges of bytes between all ranks. Not thread-safe.
class Exchange {
  public:
    /// Waits for all ranks. runtime Error when they do not come within five times `timeout`: machines do not start at
    /// the same moment.
    Exchange(const LaunchEnvironment& environment, std::chrono::seconds timeout);

    /// Rank 0, which hosts the store, waits a few seconds until the others have read what they came for.
    ~Exchange();
    Exchange(const Exchange&) = delete;
    Exchange& operator=(const Exchange&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }
    const Rendezvous& rendezvous() const { return rendezvous_; }
    std::chrono::seconds timeout() const { return timeout_; }
    Monitor& monitor() { return *monitor_; }
    /// Every rank's host name, by rank.
    const std::vector<std::string>& hosts() const { return hosts_; }
    /// "rank 1 (host)"; until all have met the number alone.
    std::string name_of(int rank) const;

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
    template <class Ask>
    auto ask(const std::string& what, const Ask& request);

    int rank_, size_;
    std::chrono::seconds timeout_, allowed_;  ///< for each other, and for the exchange to come: longer at the start
    std::unique_ptr<StoreServer> server_;     ///< of rank 0
    Rendezvous rendezvous_;
    std::unique_ptr<StoreClient> client_;
    std::vector<uint8_t> own_;
    int64_t number_ = 0;
    std::vector<std::string> hosts_;
    std::unique_ptr<Monitor> monitor_;  ///< after the ranks have met
};

}  // namespace unsloth::comm
