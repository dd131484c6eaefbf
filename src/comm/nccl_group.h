// What the groups of CPU and of CUDA runs share, and the latter: sums by NCCL, texts through the store.
#pragma once

#include <memory>
#include <vector>

#include "comm/store.h"
#include "unsloth/comm/group.h"

namespace unsloth::comm {

/// The index of `rank` among these.
int place_among(const std::vector<int>& ranks, int rank);

/// Texts through the store, and the monitor's word.
class StoreBackedGroup : public Group {
  public:
    std::vector<std::string> gather(const std::string& text, const std::string& what) override;
    void check() override { exchange_->monitor().check(); }
    void announce(const std::string& error) override { exchange_->monitor().announce(error); }
    std::string set_busy(const std::string& what) override { return exchange_->monitor().set_busy(what); }
    Communicator& all() override { return *all_; }
    Communicator& here() override { return here_ ? *here_ : *all_; }

  protected:
    explicit StoreBackedGroup(std::unique_ptr<Exchange> exchange)
        : Group(exchange->rank(), exchange->hosts()), exchange_(std::move(exchange)) {}
    Exchange& exchange() { return *exchange_; }
    /// all() and here(); by the constructor of what knows how.
    void make_communicators();

  private:
    std::unique_ptr<Exchange> exchange_;
    std::unique_ptr<Communicator> all_, here_;  ///< nullptr: all ranks are here
};

/// c10d's ProcessGroupNCCL on `device` (built with UNSLOTH_CUDA only). Communicators are made here, not in the first
/// step.
std::unique_ptr<Group> make_nccl_group(std::unique_ptr<Exchange> exchange, at::Device device);

}  // namespace unsloth::comm
