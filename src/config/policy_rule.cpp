#include "unsloth/config/policy_rule.h"

namespace unsloth::config {

spec::PolicyRule policy_rule(const GrpoOptions& options) {
    spec::PolicyRule rule;
    rule.type = options.loss_type;
    rule.level = options.importance_sampling_level;
    rule.epsilon = options.epsilon;
    rule.epsilon_high = options.epsilon_high.value_or(options.epsilon);
    rule.delta = options.delta.value_or(HUGE_VAL);
    rule.beta = options.kl_in_reward ? 0 : options.beta;
    rule.corrected_kl = options.use_bias_correction_kl;
    rule.off_policy_threshold = options.off_policy_mask_threshold.value_or(HUGE_VAL);
    rule.correction = options.sampler_correction;
    rule.correction_min = options.sampler_clip_min.value_or(0);
    rule.correction_max = options.sampler_clip_max.value_or(HUGE_VAL);
    rule.sapo_temperature_positive = options.sapo_temperature_pos;
    rule.sapo_temperature_negative = options.sapo_temperature_neg;
    rule.vespo_k_positive = options.vespo_k_pos;
    rule.vespo_lambda_positive = options.vespo_lambda_pos;
    rule.vespo_k_negative = options.vespo_k_neg;
    rule.vespo_lambda_negative = options.vespo_lambda_neg;
    return rule;
}

spec::PolicyBatchOptions policy_batch_options(const GrpoOptions& options, double accumulation, double slices) {
    spec::PolicyBatchOptions batch;
    batch.rule = policy_rule(options);
    batch.divisors.max_completion_length = static_cast<double>(options.max_completion_length);
    batch.divisors.accumulation = accumulation;
    batch.divisors.slices = slices;
    batch.top_entropy_quantile = options.top_entropy_quantile;
    batch.entropy_coef = options.entropy_coef;
    return batch;
}

bool needs_old_logps(const GrpoOptions& options, int64_t gradient_accumulation_steps) {
    const bool one_step =
        gradient_accumulation_steps % (options.slices(gradient_accumulation_steps) * options.num_iterations) == 0;
    const bool measured = options.sampler_correction != spec::SamplerCorrection::none || options.kl_in_reward ||
                          options.importance_sampling_level == spec::RatioLevel::sequence_sum;
    return !one_step || measured || options.old_logps != OldLogProbs::automatic;
}

}  // namespace unsloth::config
