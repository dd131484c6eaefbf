// A second stream that copies between device and pinned host memory while the context's own stream computes. On the CPU
// every copy is complete when the call returns, and the waits do nothing (tests put copies in its place that are as
// early or as late as the waits allow).
#pragma once

#include <functional>
#include <memory>

#include "unsloth/ops/context.h"

namespace unsloth::ops {

class CopyStream {
  public:
    /// `marks`: how many places in the order of copies can be remembered at a time. Runtime Error when CUDA refuses.
    CopyStream(Context& ctx, int marks);
    virtual ~CopyStream();
    CopyStream(const CopyStream&) = delete;
    CopyStream& operator=(const CopyStream&) = delete;

    /// Later copies start after what is issued on the context's stream so far.
    virtual void wait_for_compute();
    /// `to` = `from`: contiguous, of equal size; host memory must be pinned and live until the copy is done.
    virtual void copy(const at::Tensor& from, const at::Tensor& to);
    /// Calls work() with this stream as LibTorch's current one: what it issues (sums over ranks, conversions) takes its
    /// place among the copies.
    virtual void run(const std::function<void()>& work);
    /// Remembers all copies issued so far under this number.
    virtual void mark(int number);
    /// Later work on the context's stream starts after the copies that the mark remembers.
    virtual void compute_waits(int number);
    /// Returns when the copies that the mark remembers are done. From any thread.
    virtual void host_waits(int number);

  private:
    struct Cuda;
    Context& ctx_;
    std::unique_ptr<Cuda> cuda_;
};

}  // namespace unsloth::ops
