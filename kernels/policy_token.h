// How a token of a policy gradient is read, alike on the host and on the device.
#pragma once

#include "unsloth/spec/host_device.h"
#include "unsloth/spec/policy_loss.h"

namespace unsloth::kernels {

constexpr int32_t policy_token_counts = 1, policy_token_chosen = 2;

/// NaN in `old_logp`: use the policy's own. Infinity in `sampler`: none is recorded, use the old one.
UNSLOTH_HOST_DEVICE_FUNCTION spec::PolicyToken policy_token(double loss, double old_logp, double reference,
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
