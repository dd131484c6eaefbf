// Launchers of the loss of decisions; see include/unsloth/ops/decision.h.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/rows_view.h"
#include "unsloth/spec/decision_loss.h"
#include "unsloth/spec/step_scalars.h"

namespace unsloth::kernels {

struct DecisionLoss {
    spec::DecisionRule rule;
    int64_t rows = 0;
    int64_t columns = 0;                         ///< V
    int64_t most = 0;                            ///< W
    Matrix logits;                               ///< fp32; becomes the gradient when `gradient`
    const int32_t* ids = nullptr;                ///< [rows, W]
    const float* shares = nullptr;               ///< [rows, W]
    float* losses = nullptr;                     ///< [rows]
    float* brier = nullptr;                      ///< [rows]
    float* accuracy = nullptr;                   ///< [rows]
    const spec::StepScalars* scalars = nullptr;  ///< read when `gradient`
    bool gradient = false;
};
void decision_loss(const DecisionLoss& params, cudaStream_t stream);

struct CountDecisions {
    int64_t count = 0;
    const float* brier = nullptr;
    const float* accuracy = nullptr;
    float* measures = nullptr;  ///< [3], +=: brier, accuracy, count
};
void count_decisions(const CountDecisions& params, cudaStream_t stream);

}  // namespace unsloth::kernels
