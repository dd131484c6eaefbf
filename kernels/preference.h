// Launchers of preference losses; see include/unsloth/ops/preference.h.
#pragma once

#include <cuda_runtime_api.h>

#include "unsloth/spec/preference_loss.h"
#include "unsloth/spec/step_scalars.h"

namespace unsloth::kernels {

/// logp[s] = -sum of losses in [begins[s], ends[s]).
struct SequenceLogProbs {
    int64_t sequences = 0;
    const float* losses = nullptr;
    const int32_t *begins = nullptr, *ends = nullptr;
    double* logp = nullptr;
};
void sequence_log_probs(const SequenceLogProbs& params, cudaStream_t stream);

/// sums = {sum of logp - reference over odd sequences, rows}.
struct ForeignDivergence {
    int64_t rows = 0;
    const double* logp = nullptr;
    const float* reference = nullptr;
    float* sums = nullptr;
};
void foreign_divergence(const ForeignDivergence& params, cudaStream_t stream);

struct PreferenceLoss {
    spec::PreferenceRule rule;
    int64_t rows = 0;  ///< of two sequences
    const double* logp = nullptr;
    const int32_t* starts = nullptr;
    const int32_t* answers = nullptr;
    const double* prompt_logp = nullptr;
    const float* reference = nullptr;
    const int32_t* desirable = nullptr;
    const float* divergence = nullptr;
    double chosen_loss_weight = 0;
    double* slope = nullptr;
    float* weight = nullptr;
    float* measures = nullptr;
    const spec::StepScalars* scalars = nullptr;
    spec::StepOutcome* outcome = nullptr;
    uint32_t site = spec::all_finite;  ///< all_finite: do not report
};
void preference_loss(const PreferenceLoss& params, cudaStream_t stream);

}  // namespace unsloth::kernels
