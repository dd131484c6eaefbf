// Cross-entropy over rows of logits, gradient in place, for chunks of the lm_head's rows.
#pragma once

#include "unsloth/ops/context.h"

namespace unsloth::ops {

/// logits_CV (compute dtype): with `gradient`, overwritten by (softmax - onehot(target)) * scalars->inv_loss_divisor *
/// scalars->loss_scale, times the row's weight_C (fp32) where that is given, else left alone. targets_C: int32, all in
/// 0 .. V - 1 (CheckError on the CPU, undefined on CUDA). losses_C (fp32): -log p(target), unscaled; NaN when a logit
/// is NaN or +inf. fp32 arithmetic: one pass for maximum and sum (online), one for the gradient.
void cross_entropy(Context& ctx, const at::Tensor& logits_CV, const at::Tensor& targets_C, const at::Tensor& losses_C,
                   bool gradient, const at::Tensor& weight_C = {});

/// The same over a vocabulary that is cut over ranks, in two halves: logits_CV are columns [first, first + V) of the
/// whole vocabulary's, targets are ids of the whole one.
///
/// statistics_3C (fp32, contiguous): each row's maximum; its sum of exp(logit - maximum); its target's logit, 0 where
/// that is another slice's.
void cross_entropy_statistics(Context& ctx, const at::Tensor& logits_CV, const at::Tensor& targets_C, int64_t first,
                              const at::Tensor& statistics_3C);
/// Then, from all S slices' statistics_S3C in their order, what cross_entropy() does, with the same bits on all ranks
/// in losses_C.
void cross_entropy_of_slice(Context& ctx, const at::Tensor& logits_CV, const at::Tensor& targets_C, int64_t first,
                            const at::Tensor& statistics_S3C, const at::Tensor& losses_C, bool gradient,
                            const at::Tensor& weight_C = {});

/// outcome->loss += sum(losses_n) * scalars->inv_loss_divisor, summed in fp64 in a fixed order. A non-finite sum
/// reports `site`.
void accumulate_loss(Context& ctx, const at::Tensor& losses_n, Site site);

/// best_C (int32) = argmax over V of logits_CV, the lowest index among equals; NaN is never the best.
void argmax_rows(Context& ctx, const at::Tensor& logits_CV, const at::Tensor& best_C);

}  // namespace unsloth::ops
