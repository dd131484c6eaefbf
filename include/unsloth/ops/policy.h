// Policy gradients on rows of logits: log-probabilities and entropies at a temperature with their gradient in place,
// and the loss of completions. The formulas are in spec/policy_loss.h.
//
// Legend: C rows of a chunk, V vocabulary, n targets of a micro-batch, S its segments, each a prompt and a completion
// whose tokens are the segment's targets.
#pragma once

#include "unsloth/ops/context.h"
#include "unsloth/spec/policy_loss.h"

namespace unsloth::ops {

struct TokenPolicy {
    double temperature = 1;  ///< divides the logits
    at::Tensor logits_CV;    ///< compute dtype
    at::Tensor targets_C;    ///< int32, all in 0 .. V - 1 (CheckError on the CPU, undefined on CUDA)
    at::Tensor losses_C;     ///< fp32, written: -log softmax(logits / temperature)[target]
    at::Tensor entropies_C;  ///< fp32, written: of softmax(logits / temperature), natural logarithm
    /// Logits become, times inv_loss_divisor * loss_scale: weight_C times the gradient of the row's loss, plus
    /// entropy_weight_C times that of its entropy.
    bool gradient = false;
    at::Tensor weight_C = {};          ///< fp32; undefined: ones
    at::Tensor entropy_weight_C = {};  ///< fp32; undefined: zeros
};
/// Without `gradient` the logits stay. fp32 arithmetic on CUDA. NaN where a logit is NaN or +inf.
void token_policy(Context& ctx, const TokenPolicy& args);

/// Of a token with a target, for PolicyLoss::flags_n.
enum PolicyFlag : int32_t {
    token_counts = 1,  ///< the mask has it
    token_chosen = 2   ///< by the entropy mask
};

struct PolicyLoss {
    spec::PolicyRule rule;
    spec::PolicyDivisors divisors;
    double entropy_weight = 0;         ///< of each counted and chosen token's entropy in the loss: negative for a bonus
    at::Tensor losses_n;               ///< fp32, -log p of the targets, of token_policy()
    at::Tensor entropies_n;            ///< fp32, likewise
    at::Tensor starts_S1;              ///< int32: a segment's targets are [starts_S1[s], starts_S1[s + 1])
    at::Tensor advantages_S;           ///< fp32
    at::Tensor flags_n;                ///< int32, of PolicyFlag
    at::Tensor old_n;                  ///< fp32, old log-probabilities; NaN: the policy's own
    at::Tensor reference_n;            ///< fp32; read with rule.beta
    at::Tensor sampler_n;              ///< fp32; NaN: unknown of this token; infinity: none is recorded, the old one
    at::Tensor segment_losses_S;       ///< fp32, written: a segment's share of the loss
    at::Tensor weight_n;               ///< fp32, written: TokenPolicy::weight_C
    at::Tensor entropy_weight_n = {};  ///< fp32, written: TokenPolicy::entropy_weight_C; undefined without a bonus
};
/// From the log-probabilities of completions to their losses and the weights of their tokens' gradients. Sums in fp64
/// in a fixed order. Nothing is added to ctx.outcome: accumulate_loss() does that with segment_losses_S.
void policy_loss(Context& ctx, const PolicyLoss& args);

}  // namespace unsloth::ops
