// The group of a CUDA run: sums by NCCL, texts through the store.
#pragma once

#include <memory>

#include "comm/store.h"
#include "unsloth/comm/group.h"

namespace unsloth::comm {

/// What groups have in common: texts through the store, and the monitor's word.
class StoreBackedGroup : public Group {
  public:
    std::vector<std::string> gather(const std::string& text, const std::string& what) override;
    void check() override { exchange_->monitor().check(); }
    void announce(const std::string& error) override { exchange_->monitor().announce(error); }
    std::string set_busy(const std::string& what) override { return exchange_->monitor().set_busy(what); }

  protected:
    explicit StoreBackedGroup(std::unique_ptr<Exchange> exchange)
        : Group(exchange->rank(), exchange->hosts()), exchange_(std::move(exchange)) {}
    Exchange& exchange() { return *exchange_; }

  private:
    std::unique_ptr<Exchange> exchange_;
};

/// c10d's ProcessGroupNCCL on `device` (built with UNSLOTH_CUDA only). Communicators are made here, not in the first
/// step.
std::unique_ptr<Group> make_nccl_group(std::unique_ptr<Exchange> exchange, at::Device device);

}  // namespace unsloth::comm
