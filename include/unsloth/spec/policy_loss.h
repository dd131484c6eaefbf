// Losses of policy gradients: from the log-probabilities of sampled tokens and an advantage to a loss and its
// derivative by each log-probability. C++17, fp64, for host code and kernels. policy_batch.h applies them to a
// micro-batch.
//
// A row is a completion. Its sums over tokens come first (add_token), then what its tokens share (row_of), then each
// token (token_loss). Tokens that the mask excludes are not part of a row.
//
// Sources of the formulas: Shao et al., "DeepSeekMath" (grpo, k3); Yu et al., "DAPO" (dapo, epsilon_high); Liu et al.,
// "Understanding R1-Zero-Like Training" (dr_grpo); MiniMax, "MiniMax-M1" (cispo); Gao et al., "SAPO"; Zheng et al.,
// "Group Sequence Policy Optimization" (level sequence); Ahmadian et al., "Back to Basics" (sequence_sum); DeepSeek-AI,
// "DeepSeek-V3.2" (the off-policy mask, the corrected KL); Prime Intellect, "INTELLECT-2" (delta). Names as in TRL.
#pragma once

#include <cmath>
#include <cstdint>

#include "unsloth/spec/host_device.h"

namespace unsloth::spec {

enum class PolicyLossType : uint8_t { grpo, bnpo, dr_grpo, dapo, cispo, sapo, luspo, vespo };
/// Of what the ratio of policy and old policy is: a token, the geometric mean of a row, or a whole row (RLOO; its loss
/// counts once, with PolicyLossType::grpo).
enum class RatioLevel : uint8_t { token, sequence, sequence_sum };
enum class SamplerCorrection : uint8_t { none, token_truncate, token_mask, sequence_truncate, sequence_mask };

struct PolicyRule {
    PolicyLossType type = PolicyLossType::dapo;
    RatioLevel level = RatioLevel::token;
    double epsilon = 0.2, epsilon_high = 0.2;  ///< cispo: the ratio is cut at epsilon_high itself
    double delta = HUGE_VAL;                   ///< bound of the ratio that is not clipped; HUGE_VAL: none
    double beta = 0;                           ///< the KL's weight
    bool corrected_kl = true;                  ///< the KL times the ratio (use_bias_correction_kl)
    double off_policy_threshold = HUGE_VAL;    ///< HUGE_VAL: no row is dropped
    SamplerCorrection correction = SamplerCorrection::none;
    double correction_min = 0, correction_max = 3;  ///< no bound: 0 and HUGE_VAL
    double sapo_temperature_positive = 1, sapo_temperature_negative = 1.05;
    double vespo_k_positive = 2, vespo_lambda_positive = 3, vespo_k_negative = 3, vespo_lambda_negative = 2;
};

/// A token that counts: natural logarithms of its probability.
struct PolicyToken {
    double logp = 0;            ///< of the policy
    double old_logp = 0;        ///< of the policy at generation; logp itself when it is the same
    double reference_logp = 0;  ///< used with beta
    /// The sampler's; without any record old_logp. NaN: not known of this token, which then has a difference of 0.
    double sampler_logp = 0;
    bool chosen = true;  ///< by the entropy mask (top_entropy_quantile)
};

/// What sums over rows are divided by. Of the micro-batch that the options describe, however passes are cut.
struct PolicyDivisors {
    double rows = 1;               ///< of the micro-batch, rows without tokens too
    double tokens = 1;             ///< of the micro-batch that count (bnpo)
    double generation_tokens = 1;  ///< of the whole generation batch that count (dapo, cispo, vespo)
    double max_completion_length = 512;
    double accumulation = 1;  ///< micro-batches of an optimizer step
    double slices = 1;        ///< micro-batches of a generation batch (steps_per_generation)
};

/// Sums over a row's tokens.
struct PolicySums {
    double tokens = 0;
    double log_ratio = 0;           ///< log-probability minus the old one
    double bounded_log_ratio = 0;   ///< each within 20 (vespo)
    double sampler_difference = 0;  ///< old minus sampler
    double log_corrections = 0;     ///< of the tokens' corrections, bounded (vespo)
    double off_policy = 0;          ///< sampler minus policy
    double weights = 0;             ///< the tokens' corrections where the entropy mask chose them
    double kl = 0;                  ///< k3, without the ratio
};

/// What the tokens of a row share.
struct PolicyRow {
    double advantage = 0;
    double tokens = 0;
    double weight = 0;          ///< of each token's loss in the sum, 1 / divisor
    double ratio = 1;           ///< of sequence levels
    double correction = 1;      ///< of sequence corrections
    bool kept = true;           ///< by the off-policy mask
    double phi = 1;             ///< vespo's
    double loss = 0;            ///< of sequence levels, before masks and corrections
    double by_every_token = 0;  ///< sequence levels: derivative by each token through the row's ratio, with `weight`
};

struct PolicyTokenLoss {
    double loss = 0;     ///< its share of the micro-batch's loss
    double by_logp = 0;  ///< derivative of the micro-batch's loss by its log-probability
    double ratio = 1;    ///< its own or its row's
    double kl = 0;       ///< k3, times the ratio where it is corrected
};

/// Which bound a ratio passes, by the advantage's sign; for metrics.
struct PolicyClip {
    bool low = false, high = false;
};

constexpr double largest_log_ratio = 20;              // of what is raised to a power of e
constexpr double smallest_log_ratio = -18.420680744;  // log 1e-8

UNSLOTH_HOST_DEVICE_FUNCTION double within(double value, double low, double high) {
    return value < low ? low : value > high ? high : value;
}
UNSLOTH_HOST_DEVICE_FUNCTION bool corrects_tokens(SamplerCorrection correction) {
    return correction == SamplerCorrection::token_truncate || correction == SamplerCorrection::token_mask;
}
UNSLOTH_HOST_DEVICE_FUNCTION bool corrects_rows(SamplerCorrection correction) {
    return correction == SamplerCorrection::sequence_truncate || correction == SamplerCorrection::sequence_mask;
}
/// Types whose ratio is a constant of the gradient: the log-probability itself is differentiated.
UNSLOTH_HOST_DEVICE_FUNCTION bool weighs_log_probabilities(PolicyLossType type) {
    return type == PolicyLossType::cispo || type == PolicyLossType::vespo;
}

/// The ratio of policy at generation and sampler, from the difference of their log-probabilities, cut as the rule says.
UNSLOTH_HOST_DEVICE_FUNCTION double sampler_ratio(const PolicyRule& rule, double difference) {
    const double ratio = exp(difference);
    switch (rule.correction) {
        case SamplerCorrection::none:
            return 1;
        case SamplerCorrection::token_truncate:
        case SamplerCorrection::sequence_truncate:
            return within(ratio, rule.correction_min, rule.correction_max);
        case SamplerCorrection::token_mask:
        case SamplerCorrection::sequence_mask:
            return ratio < rule.correction_min || ratio > rule.correction_max ? 0 : ratio;
    }
    return 1;
}
/// old - sampler; 0 where the sampler's is not known.
UNSLOTH_HOST_DEVICE_FUNCTION double sampler_difference(const PolicyToken& token) {
    return token.sampler_logp == token.sampler_logp ? token.old_logp - token.sampler_logp : 0.0;
}
UNSLOTH_HOST_DEVICE_FUNCTION double token_correction(const PolicyRule& rule, const PolicyToken& token) {
    return corrects_tokens(rule.correction) ? sampler_ratio(rule, sampler_difference(token)) : 1.0;
}
UNSLOTH_HOST_DEVICE_FUNCTION double log_correction(double ratio) {
    return ratio > 0 ? within(::log(ratio), smallest_log_ratio, largest_log_ratio) : smallest_log_ratio;
}

/// k3 of policy and reference. Beyond a difference of 20 it stays as it is there, and its derivative is 0: e^d would
/// leave the range of floats.
UNSLOTH_HOST_DEVICE_FUNCTION double kl_estimate(double reference_logp, double logp, double* by_logp) {
    const double difference = reference_logp - logp;
    const double d = difference > largest_log_ratio ? largest_log_ratio : difference;
    *by_logp = difference > largest_log_ratio ? 0.0 : -expm1(d);
    return expm1(d) - d;
}
/// Whether kl_estimate() cuts.
UNSLOTH_HOST_DEVICE_FUNCTION bool kl_is_cut(const PolicyToken& token) {
    return token.reference_logp - token.logp > largest_log_ratio;
}

UNSLOTH_HOST_DEVICE_FUNCTION void add_token(const PolicyRule& rule, const PolicyToken& token, PolicySums& sums) {
    const double log_ratio = token.logp - token.old_logp;
    const double correction = token_correction(rule, token);
    sums.tokens += 1;
    sums.log_ratio += log_ratio;
    sums.bounded_log_ratio += within(log_ratio, -largest_log_ratio, largest_log_ratio);
    sums.sampler_difference += sampler_difference(token);
    sums.off_policy += token.sampler_logp == token.sampler_logp ? token.sampler_logp - token.logp : 0.0;
    if (corrects_tokens(rule.correction)) sums.log_corrections += log_correction(correction);
    if (token.chosen) sums.weights += correction;
    double unused = 0;
    if (rule.beta != 0) sums.kl += kl_estimate(token.reference_logp, token.logp, &unused);
}

/// 1 / divisor of each token's loss. A row's sequence_sum counts once, which is each token's mean.
UNSLOTH_HOST_DEVICE_FUNCTION double token_weight(const PolicyRule& rule, const PolicyDivisors& by, double row_tokens) {
    const double length = row_tokens < 1 ? 1 : row_tokens;
    switch (rule.type) {
        case PolicyLossType::grpo:
        case PolicyLossType::sapo:
            return 1 / (by.rows * length * by.accumulation);
        case PolicyLossType::bnpo:
            return 1 / ((by.tokens < 1 ? 1 : by.tokens) * by.accumulation);
        case PolicyLossType::dr_grpo:
            return 1 / (by.rows * by.max_completion_length * by.accumulation);
        case PolicyLossType::luspo:
            return 1 / (by.rows * by.accumulation);
        case PolicyLossType::dapo:
        case PolicyLossType::cispo:
        case PolicyLossType::vespo:
            return by.slices / ((by.generation_tokens < 1 ? 1 : by.generation_tokens) * by.accumulation);
    }
    return 0;
}

/// The loss of a ratio, and its derivative by the ratio's logarithm; not of types that weigh log-probabilities.
UNSLOTH_HOST_DEVICE_FUNCTION double ratio_loss(const PolicyRule& rule, double ratio, double advantage, double* by_log) {
    if (rule.type == PolicyLossType::sapo) {
        const double t = advantage > 0 ? rule.sapo_temperature_positive : rule.sapo_temperature_negative;
        const double gate = 1 / (1 + exp(-t * (ratio - 1)));
        *by_log = -4 * gate * (1 - gate) * ratio * advantage;
        return -4 / t * gate * advantage;
    }
    const double low = 1 - rule.epsilon, high = 1 + rule.epsilon_high;
    const double open = (ratio > rule.delta ? rule.delta : ratio) * advantage;
    const double clipped = within(ratio, low, high) * advantage;
    const bool moves = open < clipped ? ratio <= rule.delta : ratio >= low && ratio <= high;
    *by_log = moves ? -ratio * advantage : 0.0;
    return -(open < clipped ? open : clipped);
}

/// vespo's weight of a row.
UNSLOTH_HOST_DEVICE_FUNCTION double vespo_phi(const PolicyRule& rule, const PolicySums& sums, double correction,
                                              double advantage) {
    double log_w = sums.bounded_log_ratio + sums.log_corrections;
    if (corrects_rows(rule.correction)) log_w += log_correction(correction);
    log_w = within(log_w, smallest_log_ratio, largest_log_ratio);
    const double k = advantage >= 0 ? rule.vespo_k_positive : rule.vespo_k_negative;
    const double given = advantage >= 0 ? rule.vespo_lambda_positive : rule.vespo_lambda_negative;
    const double lambda = given < 1e-4 ? 1e-4 : given;
    const double phi = exp(lambda + k * log_w - lambda * exp(log_w));
    return phi < HUGE_VAL ? phi : 0.0;
}

UNSLOTH_HOST_DEVICE_FUNCTION PolicyRow row_of(const PolicyRule& rule, const PolicyDivisors& by, const PolicySums& sums,
                                              double advantage) {
    const double length = sums.tokens < 1 ? 1 : sums.tokens;
    PolicyRow row;
    row.advantage = advantage;
    row.tokens = sums.tokens;
    row.weight = token_weight(rule, by, sums.tokens);
    row.kept = advantage >= 0 || sums.off_policy / length <= rule.off_policy_threshold;
    if (corrects_rows(rule.correction)) row.correction = sampler_ratio(rule, sums.sampler_difference);
    if (rule.type == PolicyLossType::vespo) row.phi = vespo_phi(rule, sums, row.correction, advantage);
    if (rule.level == RatioLevel::token) return row;
    const double by_token = rule.level == RatioLevel::sequence ? 1 / length : 1.0;  // of the ratio's logarithm
    row.ratio = exp(sums.log_ratio * by_token);
    double by_log = 0;
    if (!weighs_log_probabilities(rule.type)) row.loss = ratio_loss(rule, row.ratio, advantage, &by_log);
    if (!row.kept) by_log = 0;
    by_log *= sums.weights * row.correction;
    if (rule.corrected_kl) by_log += rule.beta * sums.kl * row.ratio;
    row.by_every_token = row.weight * by_token * by_log;
    return row;
}

UNSLOTH_HOST_DEVICE_FUNCTION PolicyTokenLoss token_loss(const PolicyRule& rule, const PolicyRow& row,
                                                        const PolicyToken& token) {
    const bool own = rule.level == RatioLevel::token;
    PolicyTokenLoss result;
    result.ratio = own ? exp(token.logp - token.old_logp) : row.ratio;
    double loss = 0, by_logp = 0;
    if (weighs_log_probabilities(rule.type)) {
        const double cut = result.ratio > rule.epsilon_high ? rule.epsilon_high : result.ratio;
        by_logp = -(rule.type == PolicyLossType::vespo ? row.phi : cut) * row.advantage;
        loss = by_logp * token.logp;
    } else if (own) {
        loss = ratio_loss(rule, result.ratio, row.advantage, &by_logp);
    } else {
        loss = row.loss;  // its derivative is in by_every_token
    }
    double factor = row.kept && token.chosen ? 1 : 0;
    if (rule.type != PolicyLossType::vespo) factor *= token_correction(rule, token) * row.correction;
    loss *= factor;
    by_logp *= factor;
    if (rule.beta != 0) {
        double kl_by_logp = 0;
        result.kl = kl_estimate(token.reference_logp, token.logp, &kl_by_logp);
        if (rule.corrected_kl) {
            kl_by_logp *= result.ratio;
            result.kl *= result.ratio;
            if (own) kl_by_logp += result.kl;
        }
        loss += rule.beta * result.kl;
        by_logp += rule.beta * kl_by_logp;
    }
    result.loss = row.weight * loss;
    result.by_logp = row.weight * by_logp + row.by_every_token;
    return result;
}

/// What a row adds that has no token: with sequence_sum a ratio of 1, without a gradient; otherwise nothing.
UNSLOTH_HOST_DEVICE_FUNCTION double empty_row_loss(const PolicyRule& rule, const PolicyRow& row) {
    return rule.level == RatioLevel::sequence_sum && row.tokens < 1 ? row.weight * row.loss : 0.0;
}

/// Of a token's ratio or a row's: cispo's cut is high, sapo and vespo have none.
UNSLOTH_HOST_DEVICE_FUNCTION PolicyClip clip_of(const PolicyRule& rule, double ratio, double advantage) {
    switch (rule.type) {
        case PolicyLossType::cispo:
            return {false, ratio > rule.epsilon_high && advantage > 0};
        case PolicyLossType::sapo:
        case PolicyLossType::vespo:
            return {};
        default: {
            const double bound = ratio > rule.delta ? rule.delta : ratio;
            return {bound < 1 - rule.epsilon && advantage < 0, bound > 1 + rule.epsilon_high && advantage > 0};
        }
    }
}

}  // namespace unsloth::spec
