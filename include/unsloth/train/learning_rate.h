// What each parameter's learning rate is.
#pragma once

#include "unsloth/config/config.h"
#include "unsloth/ops/optimizer.h"

namespace unsloth::train {

/// AdamW's settings; LoRA+ (Hayou, Ghosh and Yu, 2024) gives the groups of weights::Parameter::RateGroup their factors.
/// The learning rate must be settled.
ops::AdamwSettings adamw_settings(const config::Config& config);

}  // namespace unsloth::train
