// The processes that train together, and their collectives.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "unsloth/comm/communicator.h"
#include "unsloth/comm/launch.h"

namespace unsloth::comm {

/// All processes of the run. All ranks call collectives in the same order, each from one thread at a time. A rank that
/// misses the group's timeout, and has not reported that it is busy, ends the others with a runtime Error. The Error
/// names that rank, where it can be identified, and what was waited for. A rank that ends, or is stopped, ends the
/// others within 15 s of that.
class Group {
  public:
    virtual ~Group() = default;
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }

    /// The communicator of all ranks.
    virtual Communicator& all() = 0;
    /// That of the ranks of this machine.
    virtual Communicator& here() = 0;
    /// That of these ranks, ascending, this one among them. All ranks of the group call it together, each with the
    /// ranks of its own communicator, which must not outlive the group. `name` is for messages. usage Error where CPU
    /// ranks of several machines would be in one that is not of all.
    virtual std::unique_ptr<Communicator> make_communicator(const std::vector<int>& ranks, const std::string& name) = 0;

    void all_reduce(const at::Tensor& sum, const std::string& what) { all().all_reduce(sum, what); }
    void all_reduce_async(const at::Tensor& sum, const std::function<void()>& after, const std::string& what) {
        all().all_reduce_async(sum, after, what);
    }
    void join() { all().join(); }

    /// The ranks of this machine (of this host name), in order, and this rank's index among them.
    const std::vector<int>& ranks_here() const { return ranks_here_; }
    int place_here() const { return place_here_; }
    /// Becomes what it is on the rank of this machine at place `root`; ranks of other machines do as they like.
    void broadcast_here(const at::Tensor& values, int root, const std::string& what) {
        here().broadcast(values, root, what);
    }

    /// Every rank's text, by rank. Waits for all; meant for a few kilobytes. Control characters of the others' texts
    /// but for line ends become '?'.
    virtual std::vector<std::string> gather(const std::string& text, const std::string& what) = 0;

    /// runtime Error when it is known that a rank is gone, has failed or is overdue: what it names is then better than
    /// any error that follows from it. After the host waited for the device, results may only be used once this has
    /// returned.
    virtual void check() = 0;
    /// This rank ends by an error: the others end with its first line.
    virtual void announce(const std::string& error) = 0;
    /// What this rank works on from now on while the others may wait for it ("": nothing); what it was before. See
    /// LongOperation.
    virtual std::string set_busy(const std::string& what) = 0;

    void barrier(const std::string& what) { gather("", what); }

  protected:
    /// `hosts`: every rank's host name, by rank.
    Group(int rank, const std::vector<std::string>& hosts);

  private:
    int rank_, size_;
    std::vector<int> ranks_here_;
    int place_here_ = 0;
};

/// While it lives the others wait for this rank as long as it takes: they see that its process lives, and say what it
/// is busy with. For work whose length depends on disks and data. No group: nothing.
class LongOperation {
  public:
    LongOperation(Group* group, const std::string& what) : group_(group) {
        if (group_ != nullptr) before_ = group_->set_busy(what);
    }
    ~LongOperation() {
        if (group_ != nullptr) group_->set_busy(before_);
    }
    LongOperation(const LongOperation&) = delete;
    LongOperation& operator=(const LongOperation&) = delete;

  private:
    Group* group_;
    std::string before_;
};

/// Meets the other ranks at rank 0's store and makes the group: NCCL for a CUDA device; on the CPU memory that the
/// ranks of a machine share, or the store itself where they are of several machines. nullptr when alone. runtime Error
/// when the ranks do not meet within five times `timeout`.
std::unique_ptr<Group> make_group(const LaunchEnvironment& environment, at::Device device,
                                  std::chrono::seconds timeout);

}  // namespace unsloth::comm
