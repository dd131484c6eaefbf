// What training.learning_rate auto means, and what each parameter's rate is.
#pragma once

#include <string>

#include "unsloth/config/config.h"
#include "unsloth/ops/optimizer.h"
#include "unsloth/spec/model_spec.h"

namespace unsloth::train {

struct LearningRateRule {
    double rate = 0;
    std::string reason;  ///< the formula with its numbers, and its source
};

/// The published rule for a run of this configuration on this model: for a LoRA 5e-4 (2000 / hidden size)^p, p 0.781
/// for models built as Llama and 0.0775 for Qwen, a tenth of it for training all weights (Schulman and Thinking
/// Machines Lab, "LoRA Without Regret", 2025, and their cookbook); 1e-5 for preferences (the same cookbook). A hidden
/// size below what it was fitted on counts as 1024.
LearningRateRule learning_rate_rule(const config::Config& config, const spec::ModelSpec& spec);

/// AdamW's settings; LoRA+ (Hayou, Ghosh and Yu, 2024) gives the groups of weights::Parameter::RateGroup their factors.
/// The learning rate must be settled.
ops::AdamwSettings adamw_settings(const config::Config& config);

}  // namespace unsloth::train
