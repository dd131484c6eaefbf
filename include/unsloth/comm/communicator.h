// Collectives and point-to-point messages between some of the run's processes.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace unsloth::comm {

/// An operation that runs concurrently with the current stream's work.
class Message {
  public:
    virtual ~Message() = default;
    Message(const Message&) = delete;
    Message& operator=(const Message&) = delete;
    /// Later work of the current stream begins when it is done; on the CPU the host waits, and gets its errors.
    virtual void wait() = 0;

  protected:
    Message() = default;
};

/// Collectives are called by all members in the same order, each by one thread at a time, with contiguous tensors of
/// the same size and type on the communicator's device. On CUDA they are issued after the work of the current stream,
/// later work of that stream sees the results, and the host does not wait. A member that does not come within the
/// run's timeout, though it says of nothing that it is busy with it, ends the others with a runtime Error that names
/// it, its host, this communicator and `what` ("gradients of step 3").
class Communicator {
  public:
    virtual ~Communicator() = default;
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    int rank() const { return rank_; }  ///< among the members
    int size() const { return static_cast<int>(ranks_.size()); }
    const std::vector<int>& ranks() const { return ranks_; }  ///< the members' ranks in the run, ascending
    const std::string& name() const { return name_; }         ///< "tp of ranks 2, 3", for messages

    /// fp32 or bf16: becomes the sum over the members, with the same bits on each; on the CPU it is added up in fp32 in
    /// the order of the ranks and rounded once.
    virtual void all_reduce(const at::Tensor& sum, const std::string& what) = 0;
    /// The same, concurrent with the current stream's work. `after` is called with another stream as LibTorch's current
    /// one, and makes it wait for the inputs. The current stream sees the sums after join(). On the CPU it is
    /// all_reduce().
    virtual void all_reduce_async(const at::Tensor& sum, const std::function<void()>& after,
                                  const std::string& what) = 0;
    virtual void join() = 0;
    /// fp32 or bf16: `values` in size() equal parts; `own` becomes the sum over the members of the part of this one's
    /// rank. It may be that part; the other parts are left as they are.
    virtual void reduce_scatter(const at::Tensor& values, const at::Tensor& own, const std::string& what) = 0;
    /// fp32 or bf16: on the member `root` it becomes the sum over the members, added up as all_reduce() does; on the
    /// others it may be anything afterwards.
    virtual void reduce(const at::Tensor& sum, int root, const std::string& what) = 0;
    /// Any type: `all` becomes the members' `own`, by rank. `own` may be its part of `all`.
    virtual void all_gather(const at::Tensor& own, const at::Tensor& all, const std::string& what) = 0;
    /// Any type: becomes what it is on the member `root`.
    virtual void broadcast(const at::Tensor& values, int root, const std::string& what) = 0;
    /// Any type, between two members; called by these two. A send may wait for its receive.
    virtual void send(const at::Tensor& values, int to, const std::string& what) = 0;
    virtual void receive(const at::Tensor& values, int from, const std::string& what) = 0;
    /// As send(), after the current stream's work so far and concurrent with what follows. The values must not change
    /// until it is done. Messages to one member are received in the order in which they were sent. While such sends
    /// run, this process uses the communicator for nothing else.
    virtual std::unique_ptr<Message> send_async(const at::Tensor& values, int to, const std::string& what) = 0;

  protected:
    /// `rank`: this process' index in `ranks`; `name`: of the group that they form.
    Communicator(int rank, std::vector<int> ranks, const std::string& name);
    /// "the gradients of step 3 (all-reduce, dp of ranks 0, 2)": what messages call it.
    std::string title(const std::string& what, const char* operation) const;

  private:
    int rank_;
    std::vector<int> ranks_;
    std::string name_;
};

}  // namespace unsloth::comm
