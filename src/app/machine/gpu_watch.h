// GPUs asked again and again while something else computes on them.
#pragma once

#include <chrono>
#include <thread>
#include <vector>

#include "app/machine/nvml.h"

namespace unsloth::app {

/// Asks NVML every `interval` until end() or its own end, on a thread of its own; none where there is no GPU.
class GpuWatch {
  public:
    explicit GpuWatch(std::chrono::milliseconds interval);
    /// As they were when the watch began.
    const std::vector<NvmlGpu>& before() const { return before_; }
    /// The same with the highest temperature, power and clock since, and all reasons for lower clocks.
    std::vector<NvmlGpu> end();

  private:
    std::vector<NvmlGpu> before_, since_;
    std::jthread thread_;  ///< the last member: it uses the others until it is joined
};

}  // namespace unsloth::app
