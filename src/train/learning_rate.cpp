#include "unsloth/train/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "unsloth/core/error.h"
#include "unsloth/weights/parameters.h"

namespace unsloth::train {

LearningRateRule learning_rate_rule(const config::Config& config, const spec::ModelSpec& spec) {
    if (config::compares_completions(config.training.objective))
        return {1e-5, "1e-5 for preferences (Thinking Machines Lab's cookbook, 2025)"};
    constexpr double base = 5e-4, base_size = 2000, of_full_training = 0.1;
    constexpr int64_t least_size = 1024;  // of the models that it was fitted on
    const bool qwen = spec.model_type.starts_with("qwen");
    const double power = qwen ? 0.0775 : 0.781;
    const int64_t size = std::max(spec.hidden_size, least_size);
    const bool full = config.lora.finetuning_type == config::FinetuningType::full;
    const double rate = base * std::pow(base_size / static_cast<double>(size), power) * (full ? of_full_training : 1.0);
    // Three digits: the rule says no more, and a file that names the rate reads back as it was.
    char text[32];
    std::snprintf(text, sizeof text, "%.2e", rate);
    return {std::stod(text), cat(text, " = ", full ? "5e-5" : "5e-4", " x (2000 / ", size, ")^", power, " for ",
                                 full ? "all weights" : "a LoRA", " of a model built as ", qwen ? "Qwen" : "Llama",
                                 size > spec.hidden_size ? cat("; smaller ones count as ", size) : "",
                                 " (\"LoRA Without Regret\", Thinking Machines Lab, 2025)")};
}

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
