// A place in the work of a context's stream, with its time.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <optional>

#include "unsloth/ops/context.h"

namespace unsloth::train {

/// On the CPU, where work is done when its call returns, a time.
class CudaEventTime {
  public:
    explicit CudaEventTime(const ops::Context& ctx) : ctx_(ctx) {
        if (ctx.is_cuda()) event_.emplace(c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT);  // it keeps time
    }
    void record() {
        if (event_) {
            event_->record(c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(ctx_.device()));
        } else {
            time_ = std::chrono::steady_clock::now();
        }
    }
    void wait() const {
        if (event_) event_->synchronize();
    }
    /// Both were reached.
    double seconds_since(const CudaEventTime& earlier) const {
        if (event_) return earlier.event_->elapsedTime(*event_) / 1000;
        return std::chrono::duration<double>(time_ - earlier.time_).count();
    }

  private:
    const ops::Context& ctx_;
    std::optional<c10::Event> event_;
    std::chrono::steady_clock::time_point time_;
};

}  // namespace unsloth::train
