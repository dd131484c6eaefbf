// A place in the work of a context's stream that other streams wait for, in work that is recorded (ops/recorded_work.h)
// too. On the CPU all work is complete when its call returns, and nothing here does anything.
#pragma once

#include <memory>

#include "unsloth/ops/context.h"

namespace unsloth::ops {

class Milestone {
  public:
    /// runtime Error when CUDA refuses.
    explicit Milestone(Context& ctx);
    ~Milestone();
    Milestone(Milestone&&) noexcept;
    Milestone& operator=(Milestone&&) noexcept;

    /// Stands behind all that is issued on the context's stream so far. In work that is being recorded: behind what is
    /// recorded so far, in every issue of it; the milestone must live as long as the recording.
    void record();
    /// Later work on LibTorch's current stream of the device waits until the last issued record() is reached. Nothing
    /// to wait for when there was none.
    void wait() const;

  private:
    struct Event;
    Context* ctx_;
    std::unique_ptr<Event> event_;
};

}  // namespace unsloth::ops
