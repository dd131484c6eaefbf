// Losses of preferences: from the log-probabilities of a prompt's answers to a loss and its derivatives. C++17, fp64,
// for host code and kernels.
//
// Sources of the formulas: Rafailov et al., "Direct Preference Optimization" (sigmoid); Mitchell, "A note on DPO with
// noisy preferences" (label smoothing); Zhao et al., "SLiC-HF" (hinge); Azar et al., "A General Theoretical Paradigm to
// Understand Learning from Human Preferences" (ipo, a token's mean as in TRL); Chowdhury et al., "Provably Robust DPO"
// (robust); Meng et al., "SimPO"; Hong et al., "ORPO"; Ethayarajh et al., "KTO".
#pragma once

#include <cmath>
#include <cstdint>

#include "unsloth/spec/host_device.h"

namespace unsloth::spec {

enum class PreferenceLossType : uint8_t { sigmoid, hinge, ipo, robust, simpo, orpo, kto };

struct PreferenceRule {
    PreferenceLossType type = PreferenceLossType::sigmoid;
    double beta = 0.1;
    double label_smoothing = 0;             ///< sigmoid, robust, simpo: share of pairs whose answers were mixed up
    double gamma = 0.5;                     ///< simpo's margin
    double desirable = 1, undesirable = 1;  ///< kto's weights
};

/// An answer: sums over its tokens.
struct AnswerLogProb {
    double policy = 0, reference = 0;
    double tokens = 1;
};

struct PairLoss {
    double loss = 0;
    double by_chosen = 0, by_rejected = 0;  ///< its derivatives by AnswerLogProb::policy
    double reward_chosen = 0, reward_rejected = 0;
};

struct VerdictLoss {
    double loss = 0;
    double by_answer = 0;
    double reward = 0;
};

UNSLOTH_HOST_DEVICE_FUNCTION double sigmoid(double x) {
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}
/// -log sigmoid(x)
UNSLOTH_HOST_DEVICE_FUNCTION double minus_log_sigmoid(double x) {
    return x >= 0 ? log1p(exp(-x)) : log1p(exp(x)) - x;
}

/// Whether a loss sees the mean over an answer's tokens and no reference.
UNSLOTH_HOST_DEVICE_FUNCTION bool takes_means(PreferenceLossType type) {
    return type == PreferenceLossType::simpo || type == PreferenceLossType::orpo;
}

/// The loss of a pair; of any type but kto.
UNSLOTH_HOST_DEVICE_FUNCTION PairLoss pair_loss(const PreferenceRule& rule, const AnswerLogProb& chosen,
                                                const AnswerLogProb& rejected) {
    const bool means = takes_means(rule.type);
    const double c = means ? chosen.policy / chosen.tokens : chosen.policy - chosen.reference;
    const double r = means ? rejected.policy / rejected.tokens : rejected.policy - rejected.reference;
    const double beta = rule.beta, smoothing = rule.label_smoothing;
    PairLoss result;
    result.reward_chosen = beta * c;
    result.reward_rejected = beta * r;
    double by_c = 0, by_r = 0;  // the derivatives by c and r
    switch (rule.type) {
        case PreferenceLossType::sigmoid:
        case PreferenceLossType::simpo: {
            const double margin = beta * (c - r) - (rule.type == PreferenceLossType::simpo ? rule.gamma : 0.0);
            result.loss = (1 - smoothing) * minus_log_sigmoid(margin) + smoothing * minus_log_sigmoid(-margin);
            by_c = beta * (smoothing * sigmoid(margin) - (1 - smoothing) * sigmoid(-margin));
            by_r = -by_c;
            break;
        }
        case PreferenceLossType::robust: {
            const double margin = beta * (c - r), scale = 1 / (1 - 2 * smoothing);
            result.loss =
                scale * ((1 - smoothing) * minus_log_sigmoid(margin) - smoothing * minus_log_sigmoid(-margin));
            by_c = -scale * beta * (smoothing * sigmoid(margin) + (1 - smoothing) * sigmoid(-margin));
            by_r = -by_c;
            break;
        }
        case PreferenceLossType::hinge: {
            const double lacking = 1 - beta * (c - r);
            result.loss = lacking > 0 ? lacking : 0.0;
            by_c = lacking > 0 ? -beta : 0.0;
            by_r = -by_c;
            break;
        }
        case PreferenceLossType::ipo: {
            const double beyond = c / chosen.tokens - r / rejected.tokens - 1 / (2 * beta);
            result.loss = beyond * beyond;
            by_c = 2 * beyond / chosen.tokens;
            by_r = -2 * beyond / rejected.tokens;
            break;
        }
        case PreferenceLossType::orpo: {
            // log(1 - p) of p = e^c; a p of 1 has no odds. `::`, for callers have a namespace of that name
            constexpr double nearest_to_one = -1e-12;
            const double log_c = c < nearest_to_one ? c : nearest_to_one,
                         log_r = r < nearest_to_one ? r : nearest_to_one;
            const double odds = (log_c - log_r) - (::log(-::expm1(log_c)) - ::log(-::expm1(log_r)));
            result.loss = beta * minus_log_sigmoid(odds);
            const double by_odds = -beta * sigmoid(-odds);
            by_c = by_odds / -expm1(log_c);
            by_r = -by_odds / -expm1(log_r);
            break;
        }
        case PreferenceLossType::kto:
            break;
    }
    result.by_chosen = means ? by_c / chosen.tokens : by_c;
    result.by_rejected = means ? by_r / rejected.tokens : by_r;
    return result;
}

/// KTO's loss of one answer; `divergence`: of the policy from the reference, not negative.
UNSLOTH_HOST_DEVICE_FUNCTION VerdictLoss verdict_loss(const PreferenceRule& rule, const AnswerLogProb& answer,
                                                      bool desirable, double divergence) {
    const double ratio = answer.policy - answer.reference, sign = desirable ? 1 : -1;
    const double weight = desirable ? rule.desirable : rule.undesirable;
    const double value = sigmoid(sign * rule.beta * (ratio - divergence));
    return {weight * (1 - value), -sign * weight * rule.beta * value * (1 - value), rule.beta * ratio};
}

}  // namespace unsloth::spec
