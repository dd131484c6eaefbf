#include "unsloth/config/option_table.h"

#include "config/options/sections.h"

namespace unsloth::config {

std::vector<std::string> log_levels() {
    return {"debug", "info", "warning", "error", "off"};
}

std::vector<std::pair<std::string, spec::DType>> compute_types() {
    return {{"float32", spec::DType::f32}, {"bfloat16", spec::DType::bf16}, {"float16", spec::DType::f16}};
}

std::vector<std::pair<std::string, AnswerMetric>> answer_metrics() {
    return {{"none", AnswerMetric::none}, {"exact_match", AnswerMetric::exact_match}, {"regex", AnswerMetric::regex}};
}

void declare_options(OptionSet& options, Config& config) {
    declare_model(options, config.model);
    declare_lora(options, config.lora);
    declare_data(options, config.data);
    declare_training(options, config.training);
    declare_preference(options, config.preference);
    declare_distill(options, config.distill);
    declare_grpo(options, config.grpo);
    declare_hardware(options, config.hardware);
    declare_distributed(options, config.distributed);
    declare_logging(options, config.logging);
    declare_changes_of_examples(options);
    declare_foreign_values(options);
}

}  // namespace unsloth::config
