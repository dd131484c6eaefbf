// A place in the work of a context's stream that other streams wait for, in work that is recorded (ops/cuda_graph.h)
// too. On the CPU all work is complete when its call returns, and nothing here does anything.
#pragma once

#include <memory>

#include "unsloth/ops/context.h"

namespace unsloth::ops {

class Event {
  public:
    enum class Kind : uint8_t { order, timed };
    /// runtime Error when CUDA refuses.
    explicit Event(Context& ctx, Kind kind = Kind::order);
    ~Event();
    Event(Event&&) noexcept;
    Event& operator=(Event&&) noexcept;

    /// Marks the end of all work issued on the context's stream so far. During CUDA graph capture: the end of the work
    /// captured so far, in every launch of it; the event must live as long as the graph.
    void record();
    /// Later work on LibTorch's current stream of the device waits until the last issued record() is reached. Nothing
    /// to wait for when there was none.
    void wait() const;
    /// The host waits.
    void synchronize() const;
    /// Milliseconds on the device since `earlier`; both are timed and reached. 0 on the CPU.
    double ms_since(const Event& earlier) const;

  private:
    struct Handle;
    Context* ctx_;
    std::unique_ptr<Handle> handle_;
};

}  // namespace unsloth::ops
