// The ranks' store as c10d's own classes want one.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/store_client.h"

namespace unsloth::comm {

/// What ProcessGroupNCCL needs to bring its communicators together, over a connection of its own.
class RankStore final : public c10d::Store {
  public:
    RankStore(const Rendezvous& rendezvous, std::chrono::seconds timeout);

    using c10d::Store::set;
    c10::intrusive_ptr<c10d::Store> clone() override;
    void set(const std::string& key, const std::vector<uint8_t>& value) override;
    std::vector<uint8_t> get(const std::string& key) override;
    int64_t add(const std::string& key, int64_t value) override;
    bool deleteKey(const std::string& key) override;
    bool check(const std::vector<std::string>& keys) override;
    int64_t getNumKeys() override;
    void wait(const std::vector<std::string>& keys) override;
    void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;

  private:
    std::optional<std::vector<uint8_t>> get_within(const std::string& key, milliseconds timeout);
    Rendezvous rendezvous_;
    StoreClient client_;
};

}  // namespace unsloth::comm
