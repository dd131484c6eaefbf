// Signs that a run learns nothing from its completions, or from others than its model would give.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace unsloth::train {

/// Of kl_sampler_trainer, natural logarithms: the k3 estimate of how far sampler and trainer are apart, mean over
/// tokens. Both compute the same model, so that it is rounding: 1e-12 in fp32, 1e-5 to 1e-3 in 16 bits.
inline constexpr double doubtful_divergence = 5e-3, highest_divergence = 5e-2;

class RolloutGuard {
  public:
    /// Of a step's metrics; `replays`: the completions are of a file. Returns warnings, each once a run. Throws a
    /// runtime Error rollout.sampler-differs where sampler and trainer are farther apart than highest_divergence,
    /// unless it replays.
    std::vector<std::string> observe(int64_t step, const std::vector<std::pair<std::string, double>>& metrics,
                                     bool replays);

  private:
    struct Sign {
        int steps = 0;  ///< in a row, so far
        bool warned = false;
    };
    Sign truncated_, without_signal_, certain_, far_from_reference_, differs_;
};

}  // namespace unsloth::train
