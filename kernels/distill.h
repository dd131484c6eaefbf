// Launchers of a student's loss against a teacher; see include/unsloth/ops/distill.h.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/rows_view.h"
#include "unsloth/spec/distill_loss.h"
#include "unsloth/spec/dtype.h"
#include "unsloth/spec/step_scalars.h"

namespace unsloth::kernels {

struct DistillLoss {
    spec::DistillRule rule;
    int64_t rows = 0;
    int64_t columns = 0;  ///< V
    spec::DType type = spec::DType::bf16;
    Matrix logits;                     ///< becomes the gradient when `gradient`
    const int32_t* targets = nullptr;  ///< [rows]
    ConstMatrix teacher;               ///< logits of `type`; no data: it names tokens
    int64_t teacher_columns = 0;
    int64_t k = 0;                               ///< tokens that it names
    const int32_t* ids = nullptr;                ///< [rows, k]
    const float* logp = nullptr;                 ///< [rows, k + 1]
    float* losses = nullptr;                     ///< [rows]
    float* divergence = nullptr;                 ///< [rows]
    const spec::StepScalars* scalars = nullptr;  ///< read when `gradient`
    bool gradient = false;
};
void distill_loss(const DistillLoss& params, cudaStream_t stream);

struct AccumulateDistilled {
    double by_losses = 0, by_divergence = 0;
    int64_t count = 0;
    const float* losses = nullptr;
    const float* divergence = nullptr;
    float* measures = nullptr;  ///< [3], +=: losses, divergences, count
    const spec::StepScalars* scalars = nullptr;
    spec::StepOutcome* outcome = nullptr;
    uint32_t site = spec::all_finite;  ///< all_finite: do not report
};
void accumulate_distilled(const AccumulateDistilled& params, cudaStream_t stream);

}  // namespace unsloth::kernels
