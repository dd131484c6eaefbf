// What is likely a mistake in a run that can go on: told as warnings.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "unsloth/config/config.h"
#include "unsloth/spec/model_spec.h"

namespace unsloth::train {

/// What to say about a learning rate outside the range that is usual for LoRA, full training or preferences; nothing
/// otherwise. The rate must be settled.
std::optional<std::string> doubt_learning_rate(const config::Config& config, const spec::ModelSpec& spec);

/// Says once that the loss has risen to ten times its least value.
class LossWatch {
  public:
    /// `loss`: a step's, in nats a target; steps come in their order.
    std::optional<std::string> observe(int64_t step, double loss);

  private:
    double least_ = std::numeric_limits<double>::infinity();
    int64_t least_step_ = 0;
    bool told_ = false;
};

}  // namespace unsloth::train
