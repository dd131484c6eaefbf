// One row of a preference loss, shared by the CPU operator and the kernel. C++17.
#pragma once

#include "unsloth/spec/host_device.h"
#include "unsloth/spec/preference_loss.h"

namespace unsloth::kernels {

inline constexpr int row_measures = 12;  ///< ops::PreferenceMeasure

/// What a row adds.
struct PreferenceRow {
    double loss = 0;
    double slope[2] = {0, 0};  ///< derivatives by the sequences' log-probabilities
    double measures[row_measures] = {};
};

/// `answer`: the row's two sequences; `prompt`: targets before the first one; `mean_divergence`: kto's.
UNSLOTH_HOST_DEVICE_FUNCTION PreferenceRow preference_row(const spec::PreferenceRule& rule,
                                                          const spec::AnswerLogProb* answer,
                                                          const spec::AnswerLogProb& prompt, bool desirable,
                                                          double mean_divergence, double chosen_loss_weight) {
    PreferenceRow row;
    double* const m = row.measures;
    if (rule.type == spec::PreferenceLossType::kto) {
        const spec::VerdictLoss v = spec::verdict_loss(rule, answer[0], desirable, mean_divergence);
        row.loss = v.loss;
        row.slope[0] = v.by_answer;
        m[desirable ? 0 : 1] = v.reward;
        m[desirable ? 4 : 5] = answer[0].policy;
        m[desirable ? 6 : 7] = 1;
        m[10] = answer[1].policy - answer[1].reference;
        m[11] = 1;
        return row;
    }
    const spec::PairLoss p = spec::pair_loss(rule, answer[0], answer[1]);
    const bool means = spec::takes_means(rule.type);
    row.loss = p.loss - chosen_loss_weight * (answer[0].policy + prompt.policy);
    row.slope[0] = p.by_chosen - chosen_loss_weight;
    row.slope[1] = p.by_rejected;
    m[0] = p.reward_chosen;
    m[1] = p.reward_rejected;
    m[2] = p.reward_chosen > p.reward_rejected ? 1 : 0;
    m[3] = p.reward_chosen - p.reward_rejected;
    m[4] = means ? answer[0].policy / answer[0].tokens : answer[0].policy;
    m[5] = means ? answer[1].policy / answer[1].tokens : answer[1].policy;
    m[6] = m[7] = 1;
    m[8] = -(answer[0].policy + prompt.policy);
    m[9] = answer[0].tokens + prompt.tokens;
    return row;
}

}  // namespace unsloth::kernels
