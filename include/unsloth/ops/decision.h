// The loss of decisions over rows of logits, gradient in place: the formulas are in spec/decision_loss.h.
//
// Legend: C rows of a chunk, V vocabulary, W most tokens that say a question's options, n targets.
#pragma once

#include "unsloth/ops/context.h"
#include "unsloth/spec/decision_loss.h"

namespace unsloth::ops {

/// The most tokens of a row that may say its options.
inline constexpr int64_t most_option_tokens = 1024;

struct DecisionLoss {
    spec::DecisionRule rule;
    at::Tensor logits_CV;   ///< fp32
    at::Tensor ids_CW;      ///< int32: the options' tokens, each once in a row and below V; -1 after the last one
    at::Tensor shares_CW;   ///< fp32: at an option's first token its probability in the answer, at its others -1
    at::Tensor losses_C;    ///< fp32, written
    at::Tensor brier_C;     ///< fp32, written
    at::Tensor accuracy_C;  ///< fp32, written: the answer's probability of the most likely option
    bool gradient = false;  ///< logits become the gradient of the loss, times inv_loss_divisor * loss_scale
};
/// Without `gradient` the logits come back as they were.
void decision_loss(Context& ctx, const DecisionLoss& args);

/// Sums that a step of decisions reports.
enum DecisionMeasure : uint8_t { sum_of_brier, sum_of_accuracy, decisions, decision_measures };

/// The measures (fp32, the first of them are decision_measures) += the sums over n decisions, in fp64 in a fixed order.
void count_decisions(Context& ctx, const at::Tensor& brier_n, const at::Tensor& accuracy_n,
                     const at::Tensor& measures_M);

}  // namespace unsloth::ops
