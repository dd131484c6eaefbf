// The processes that train together, and what they do in common.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "unsloth/comm/launch.h"

namespace unsloth::comm {

/// Collectives are called by all ranks in the same order, each by one thread at a time. A rank that does not come within the
/// group's timeout ends the others with a runtime Error that names it, where that can be told, and what was waited for; one that ends,
/// or is stopped, within 15 s of that.
class Group {
  public:
    virtual ~Group() = default;
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }

    /// fp32, contiguous: becomes the sum over all ranks, with the same bits on each. On CUDA it is issued after the work of the current stream,
    /// later work of that stream sees the sum, and the host does not wait. `what` is for messages ("gradients").
    virtual void all_reduce(const at::Tensor& sum, const std::string& what) = 0;

    /// Every rank's text, by rank. Waits for all; meant for a few kilobytes.
    virtual std::vector<std::string> gather(const std::string& text, const std::string& what) = 0;

    /// runtime Error when it is known that a rank is gone, has failed or is overdue: what it names is then better than any error that
    /// follows from it. After the host waited for the device, results may only be used once this has returned.
    virtual void check() = 0;
    /// This rank ends by an error: the others end with its first line.
    virtual void announce(const std::string& error) = 0;

    void barrier(const std::string& what) { gather("", what); }

  protected:
    Group(int rank, int size) : rank_(rank), size_(size) {}

  private:
    int rank_, size_;
};

/// Meets the other ranks at the environment's store (c10d TCPStore) and makes the group: NCCL for a CUDA device, the store itself
/// on the CPU (sums in the order of the ranks). nullptr when alone. runtime Error when the ranks do not meet within `timeout`.
std::unique_ptr<Group> make_group(const LaunchEnvironment& environment, at::Device device, std::chrono::seconds timeout);

}  // namespace unsloth::comm
