// How a token of a policy gradient is read, alike on the host and on the device.
#pragma once

#include "unsloth/spec/policy_loss.h"

#ifdef __CUDACC__
#define UNSLOTH_POLICY_TOKEN_FUNCTION __host__ __device__ inline
#else
#define UNSLOTH_POLICY_TOKEN_FUNCTION inline
#endif

namespace unsloth::kernels {

constexpr int32_t policy_token_counts = 1, policy_token_chosen = 2;

/// NaN of `old_logp`: the policy's own. Infinity of `sampler`: none is recorded, and the old one stands for it.
UNSLOTH_POLICY_TOKEN_FUNCTION spec::PolicyToken policy_token(double loss, double old_logp, double reference,
                                                             double sampler, int32_t flags) {
    spec::PolicyToken token;
    token.logp = -loss;
    token.old_logp = old_logp == old_logp ? old_logp : token.logp;
    token.reference_logp = reference;
    token.sampler_logp = sampler == HUGE_VAL ? token.old_logp : sampler;
    token.chosen = (flags & policy_token_chosen) != 0;
    return token;
}

}  // namespace unsloth::kernels

#undef UNSLOTH_POLICY_TOKEN_FUNCTION
