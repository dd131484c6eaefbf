// Which steps are spikes: training.skip_on_spike.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "unsloth/formats/run_state.h"
#include "unsloth/ops/context.h"

namespace unsloth::train {

/// StepOutcome::skipped of a step whose values are finite and whose update was skipped.
inline constexpr uint32_t skipped_spike = 2;

/// What a step may reach before it is a spike; infinity: anything.
struct SpikeLimits {
    float loss = std::numeric_limits<float>::infinity(), grad_norm = std::numeric_limits<float>::infinity();
};

/// The losses and gradient norms of the last steps. A step is a spike when one of its two is more than `deviations`
/// standard deviations above their mean over the last 128 steps (as OLMo-core's SkipStepOptimizer has it).
/// Skipped steps count among the 128: a level that stays widens the limits, and after a few steps is no spike anymore.
class SpikeWindow {
  public:
    explicit SpikeWindow(double deviations) : deviations_(deviations) {}
    /// For step number `step`. The step right before it has no say, on no device: on a GPU its result is not known yet
    /// when the next one is issued. Infinite before the 33rd.
    SpikeLimits limits(int64_t step) const;
    /// Steps come in their order. What is not finite does not count.
    void observe(const formats::StepMeasure& measure);
    const std::vector<formats::StepMeasure>& measures() const { return measures_; }
    void restore(std::vector<formats::StepMeasure> measures) { measures_ = std::move(measures); }

  private:
    double deviations_;
    std::vector<formats::StepMeasure> measures_;  ///< of the last 129 steps, by step
};

/// Marks a step that is above its limits, without the host: all ranks have the same sums, and so the same answer.
class SpikeGuard {
  public:
    explicit SpikeGuard(const ops::Context& ctx);
    /// Host memory of one step's limits, pinned on CUDA.
    at::Tensor make_host() const;
    /// Issued after ops::gradient_norm: `outcome` (the device's StepOutcome) is skipped_spike where loss or norm is
    /// above the limits and everything is finite.
    void issue(const at::Tensor& host, const SpikeLimits& limits, const at::Tensor& outcome);

  private:
    at::Device device_;
    at::Tensor limits_, above_, any_above_, applied_;  ///< fp32 [2]; bool [2], [1], [1]
};

}  // namespace unsloth::train
