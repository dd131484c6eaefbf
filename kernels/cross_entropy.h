// Launchers of cross-entropy over rows of logits; see include/unsloth/ops/cross_entropy.h.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/rows_view.h"
#include "unsloth/spec/dtype.h"
#include "unsloth/spec/step_scalars.h"

namespace unsloth::kernels {

struct CrossEntropy {
    int64_t rows = 0;
    int64_t columns = 0;  ///< V
    spec::DType type = spec::DType::bf16;
    Matrix logits;                               ///< becomes the gradient when `gradient`
    const int32_t* targets = nullptr;            ///< [rows]
    float* losses = nullptr;                     ///< [rows]
    const float* weights = nullptr;              ///< [rows], of the gradient; nullptr: ones
    const spec::StepScalars* scalars = nullptr;  ///< read when `gradient`
    bool gradient = false;
};
void cross_entropy(const CrossEntropy& params, cudaStream_t stream);

/// Logits that are columns [first, first + columns) of a vocabulary that is cut over ranks.
struct CrossEntropyStatistics {
    int64_t rows = 0;
    int64_t columns = 0;
    int64_t first = 0;
    spec::DType type = spec::DType::bf16;
    ConstMatrix logits;
    const int32_t* targets = nullptr;  ///< [rows], of the whole vocabulary
    float* statistics = nullptr;       ///< [3, rows]
};
void cross_entropy_statistics(const CrossEntropyStatistics& params, cudaStream_t stream);

struct CrossEntropyOfSlice {
    CrossEntropy of_slice;  ///< targets of the whole vocabulary
    int64_t first = 0;
    int64_t slices = 0;
    const float* statistics = nullptr;  ///< [slices, 3, rows]
};
void cross_entropy_of_slice(const CrossEntropyOfSlice& params, cudaStream_t stream);

struct AccumulateLoss {
    int64_t count = 0;
    const float* losses = nullptr;
    const spec::StepScalars* scalars = nullptr;
    spec::StepOutcome* outcome = nullptr;
    uint32_t site = spec::all_finite;  ///< all_finite: do not report
};
void accumulate_loss(const AccumulateLoss& params, cudaStream_t stream);

struct ArgmaxRows {
    int64_t rows = 0;
    int64_t columns = 0;
    spec::DType type = spec::DType::bf16;
    ConstMatrix logits;
    int32_t* best = nullptr;  ///< [rows]
};
void argmax_rows(const ArgmaxRows& params, cudaStream_t stream);

}  // namespace unsloth::kernels
