// A student's loss against a teacher over rows of logits, gradient in place: the formulas are in spec/distill_loss.h.
//
// Legend: C rows of a chunk, V student's vocabulary, U teacher's, k tokens that a teacher names, n targets.
#pragma once

#include "unsloth/ops/context.h"
#include "unsloth/spec/distill_loss.h"

namespace unsloth::ops {

/// A teacher's output for rows: logits of all tokens, or its most likely ones.
struct TeacherRows {
    at::Tensor logits_CU = {};  ///< in the student's dtype; ids from the smaller of U and V on are unused
    at::Tensor ids_Ck = {};     ///< int32, each once in a row and below V
    at::Tensor logp_Cl = {};    ///< fp32, l = k + 1: log-probabilities at the temperature, the last of all other tokens
};

/// The most tokens of a row that a teacher may name.
inline constexpr int64_t most_teacher_tokens = 4096;

struct DistillLoss {
    spec::DistillRule rule;
    at::Tensor logits_CV;  ///< compute dtype
    at::Tensor targets_C;  ///< int32, all in 0 .. V - 1
    TeacherRows teacher;
    at::Tensor losses_C;      ///< fp32, written: -log p(target)
    at::Tensor divergence_C;  ///< fp32, written: D, without the temperature's square
    bool gradient = false;    ///< logits become the gradient of the rule's loss, times inv_loss_divisor * loss_scale
};
/// Without `gradient` the logits come back as they were.
void distill_loss(Context& ctx, const DistillLoss& args);

/// Sums that a step of distillation reports.
enum DistillMeasure : uint8_t { sum_of_losses, sum_of_divergences, distilled_targets, distill_measures };

/// outcome->loss += the sum of the rule's losses * inv_loss_divisor, and the measures (fp32 [distill_measures]) +=
/// their parts; summed in fp64 in a fixed order. A sum that is not finite reports `site`.
void accumulate_distilled(Context& ctx, const spec::DistillRule& rule, const at::Tensor& losses_n,
                          const at::Tensor& divergence_n, const at::Tensor& measures_M, Site site);

}  // namespace unsloth::ops
