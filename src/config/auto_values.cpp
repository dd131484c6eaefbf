#include "unsloth/config/auto_values.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "unsloth/core/error.h"

namespace unsloth::config {
namespace {

constexpr double base_rate = 5e-4, of_full_training = 0.1;
constexpr const char* of_cookbook = "Thinking Machines Lab's cookbook";

/// Three digits: the rule says no more, and a file that names the rate reads back as it was.
std::string shown(double rate) {
    char text[32];
    std::snprintf(text, sizeof text, "%.2e", rate);
    return text;
}

/// By the model's family and hidden size.
LearningRateRule fitted_rate(const Config& config, const spec::ModelSpec& spec) {
    constexpr double base_size = 2000, of_llama = 0.781, of_qwen = 0.0775;
    constexpr int64_t least_size = 1024;  // of the models that it was fitted on
    const bool full = config.lora.finetuning_type == FinetuningType::full;
    const int64_t size = std::max(spec.hidden_size, least_size);
    const bool llama = spec.model_type == "llama", qwen = spec.model_type.starts_with("qwen");
    const double ratio = base_size / static_cast<double>(size);
    const double power = llama ? of_llama : qwen ? of_qwen : ratio < 1 ? of_llama : of_qwen;
    const std::string family = llama ? "a Llama"
                               : qwen
                                   ? "a Qwen"
                                   : cat("a ", spec.model_type, ", which has no fit: the lower of Llama's and Qwen's");
    return {
        base_rate * std::pow(ratio, power) * (full ? of_full_training : 1.0),
        cat(" = ", full ? "5e-5" : "5e-4", " x (2000 / ", size, ")^", power, " for ", full ? "all weights" : "a LoRA",
            " of ", family, size > spec.hidden_size ? cat("; smaller ones count as ", size) : "",
            samples_completions(config.training.objective) ? "; reinforcement learning takes the same" : "",
            full || config.lora.lora_alpha == 32 ? "" : "; fitted with lora_alpha 32",
            " (\"LoRA Without Regret\", Thinking Machines Lab, 2025)")};
}

LearningRateRule rate_of_a_and_b(const Config& config, const spec::ModelSpec& spec) {
    const bool full = config.lora.finetuning_type == FinetuningType::full;
    const std::string what = full ? "all weights" : "a LoRA";
    if (compares_completions(config.training.objective))
        return {full ? 1e-6 : 1e-5, cat(": for ", what, " the ", full ? "lower" : "upper",
                                        " end of 1e-5 to 1e-6 for preferences (", of_cookbook, ", 2025)")};
    if (spec.model_type == "gpt_oss")
        return {full ? 1e-5 : 1e-4, cat(": for ", what, full ? " a tenth of " : " ", "what a LoRA of gpt-oss-20b took ",
                                        "in a sweep (", of_cookbook, ")")};
    return fitted_rate(config, spec);
}

}  // namespace

LearningRateRule learning_rate_rule(const Config& config, const spec::ModelSpec& spec) {
    LearningRateRule rule = rate_of_a_and_b(config, spec);
    const double ratio = config.lora.loraplus_lr_ratio;
    if (config.lora.finetuning_type == FinetuningType::lora && ratio > 1) {
        rule.reason += cat("; divided by loraplus_lr_ratio ", ratio, ", so that B has ", shown(rule.rate));
        rule.rate /= ratio;
    }
    const std::string text = shown(rule.rate);
    return {std::stod(text), text + rule.reason};
}

}  // namespace unsloth::config
