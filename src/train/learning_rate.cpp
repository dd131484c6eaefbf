#include "unsloth/train/learning_rate.h"

#include "unsloth/weights/parameters.h"

namespace unsloth::train {

ops::AdamwSettings adamw_settings(const config::Config& config) {
    const config::TrainingOptions& t = config.training;
    ops::AdamwSettings settings{t.adam_beta1, t.adam_beta2, t.adam_epsilon, t.weight_decay};
    using Rate = weights::Parameter::RateGroup;
    if (config.lora.loraplus_lr_ratio > 0) settings.rate_factors[Rate::lora_b_rate] = config.lora.loraplus_lr_ratio;
    if (config.lora.loraplus_lr_embedding)
        settings.rate_factors[Rate::embedding_rate] = *config.lora.loraplus_lr_embedding / t.learning_rate.value();
    return settings;
}

}  // namespace unsloth::train
