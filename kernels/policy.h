// Launchers of policy gradients; see include/unsloth/ops/policy.h.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/rows_view.h"
#include "unsloth/spec/dtype.h"
#include "unsloth/spec/policy_loss.h"
#include "unsloth/spec/step_scalars.h"

namespace unsloth::kernels {

struct TokenPolicy {
    int64_t rows = 0;
    int64_t columns = 0;  ///< V
    spec::DType type = spec::DType::bf16;
    float inverse_temperature = 1;
    Matrix logits;                               ///< becomes the gradient when `gradient`
    const int32_t* targets = nullptr;            ///< [rows]
    float* losses = nullptr;                     ///< [rows]
    float* entropies = nullptr;                  ///< [rows]
    const float* weights = nullptr;              ///< [rows]; nullptr: ones
    const float* entropy_weights = nullptr;      ///< [rows]; nullptr: zeros
    const spec::StepScalars* scalars = nullptr;  ///< read when `gradient`
    bool gradient = false;
};
void token_policy(const TokenPolicy& params, cudaStream_t stream);

struct PolicyLoss {
    spec::PolicyRule rule;
    spec::PolicyDivisors divisors;
    double entropy_weight = 0;
    int64_t segments = 0;
    const float* losses = nullptr;      ///< [n]
    const float* entropies = nullptr;   ///< [n]
    const int32_t* starts = nullptr;    ///< [segments + 1]
    const float* advantages = nullptr;  ///< [segments]
    const int32_t* flags = nullptr;     ///< [n], of kernels/policy_token.h
    const float* old_logp = nullptr;    ///< [n]
    const float* reference = nullptr;   ///< [n]
    const float* sampler = nullptr;     ///< [n]
    float* segment_losses = nullptr;    ///< [segments]
    float* weights = nullptr;           ///< [n]
    float* entropy_weights = nullptr;   ///< [n]; nullptr: there is no bonus
};
void policy_loss(const PolicyLoss& params, cudaStream_t stream);

}  // namespace unsloth::kernels
