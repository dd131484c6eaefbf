// From the losses of targets to the weights of their rows, where an objective compares whole answers: the formulas are
// in spec/preference_loss.h.
//
// Legend: n targets, S sequences (segments of the micro-batch), P = S / 2 rows of data. A row is two sequences: the
// chosen and the rejected answer, or (kto) an answer and a foreign one that the divergence is measured on.
#pragma once

#include "unsloth/ops/context.h"
#include "unsloth/spec/preference_loss.h"

namespace unsloth::ops {

/// Sums over rows that a preference step reports; `chosen` and `rejected` count the rows in their sums.
enum PreferenceMeasure : uint8_t {
    reward_chosen,
    reward_rejected,
    reward_accuracy,
    reward_margin,
    logp_chosen,
    logp_rejected,
    chosen_rows,
    rejected_rows,
    chosen_loss,  ///< -log p of the chosen answers' tokens, and of their prompts' where these are targets
    chosen_tokens,
    divergence,  ///< kto: policy against reference on foreign answers
    divergence_rows,
    preference_measures
};

/// logp_S (fp64) = minus the sum of losses_n (fp32) over [begins_S[s], ends_S[s]) (int32); summed in fp64 in a fixed
/// order.
void sequence_log_probs(Context& ctx, const at::Tensor& losses_n, const at::Tensor& begins_S, const at::Tensor& ends_S,
                        const at::Tensor& logp_S);

/// sums_2 (fp32) = {the sum of logp_S - reference_S over the foreign answers, their number}.
void foreign_divergence(Context& ctx, const at::Tensor& logp_S, const at::Tensor& reference_S,
                        const at::Tensor& sums_2);

struct PreferenceLoss {
    spec::PreferenceRule rule;
    at::Tensor logp_S;              ///< fp64, of sequence_log_probs: of the answers
    at::Tensor starts_S1;           ///< int32: a sequence's targets are [starts_S1[s], starts_S1[s + 1])
    at::Tensor answers_S;           ///< int32: and those of its answer begin here
    at::Tensor prompt_logp_S = {};  ///< fp64, of the targets before; undefined: there are none
    at::Tensor reference_S;         ///< fp32, log-probabilities of the sequences under the reference
    at::Tensor desirable_P = {};    ///< int32, kto: whether the row's answer is
    at::Tensor divergence_2 = {};   ///< fp32, kto: foreign_divergence, of all ranks
    double chosen_loss_weight = 0;  ///< of the loss of the chosen answers' tokens and of the targets before them
    at::Tensor slope_S;             ///< fp64 scratch
    at::Tensor weight_n;            ///< fp32, written: what the gradient of each target's loss is multiplied by
    at::Tensor measures_M;          ///< fp32 [preference_measures], +=
    Site site = {};                 ///< of a loss that is not finite
};
/// Also outcome->loss += the rows' losses * scalars->inv_loss_divisor, summed in fp64 in a fixed order.
void preference_loss(Context& ctx, const PreferenceLoss& args);

}  // namespace unsloth::ops
