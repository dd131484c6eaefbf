// What training.learning_rate auto means, and how lora.r auto is held.
#pragma once

#include <string>

#include "unsloth/config/config.h"
#include "unsloth/spec/model_spec.h"

namespace unsloth::config {

/// lora.r where it is left to the program, until a run knows its rows (train/rank_rule.h). A learning rate is absent so
/// long.
inline constexpr int64_t auto_rank = 0;

struct LearningRateRule {
    double rate = 0;
    std::string reason;  ///< the formula with its numbers, and its source
};

/// The published rule for a run of this configuration on this model.
///
/// Sources: Schulman and Thinking Machines Lab, "LoRA Without Regret" (2025-09), and the documentation of their
/// tinker-cookbook (supervised-learning/sl-hyperparams, preferences/dpo-guide, rl/rl-hyperparams). For a LoRA:
/// 5e-5 · 10 · (2000 / hidden size)^p, p 0.781 for Llama and 0.0775 for Qwen; a tenth of it for training all weights;
/// for reinforcement learning the same. For preferences "typically 1e-5 to 1e-6": the former for a LoRA, the latter for
/// all weights. For gpt-oss the 1e-4 that the cookbook's sweep found for the model of 20B. Families without a fit take
/// the lower of the two rates. A hidden size below what was fitted on counts as 1024.
///
/// With LoRA+ it is the rate of B, of which A's is the loraplus_lr_ratio-th part.
LearningRateRule learning_rate_rule(const Config& config, const spec::ModelSpec& spec);

}  // namespace unsloth::config
