// AdamW over a flat buffer of 256-element blocks, and the gradient norm, on the GPU. Contract:
// include/unsloth/ops/optimizer.h. All pointers are device pointers; work is issued on `stream`, nothing
// synchronises; a failed launch throws.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/adamw_math.h"
#include "unsloth/spec/step_scalars.h"

namespace unsloth::kernels {

struct AdamwArgs {
    int64_t blocks = 0;  ///< of 256 elements
    float* params = nullptr;
    float* grads = nullptr;          ///< read; written when zero_gradients
    const uint8_t* flags = nullptr;  ///< [blocks]: 1 decays, 2 8-bit, 4 and 8 the rate group
    const int32_t* slots = nullptr;  ///< [blocks]
    float *m32 = nullptr, *v32 = nullptr;
    uint8_t *m8 = nullptr, *v8 = nullptr;
    float *absmax_m8 = nullptr, *absmax_v8 = nullptr;
    const float* maps = nullptr;  ///< [512]: signed, unsigned
    adamw::Constants constants{};
    const spec::StepScalars* scalars = nullptr;
    const spec::StepOutcome* outcome = nullptr;
    bool zero_gradients = false;  ///< leaves zeros in grads, also when the update is skipped
    bool one_rate = true;         ///< all rate factors are 1: groups are not looked at
};

void adamw_step(const AdamwArgs& args, cudaStream_t stream);

/// Elements one partial sum covers: fixed, so that the order of summation depends on the number of elements
/// alone.
inline constexpr int64_t norm_chunk = 16384;

struct GradientSquaresArgs {
    const float* grads = nullptr;
    int64_t elements = 0;        ///< a multiple of 4, 16-byte aligned
    double* partials = nullptr;  ///< [ceil(elements / norm_chunk)]
};
struct GradientNormArgs {
    const double* partials = nullptr;
    int64_t chunks = 0;
    const spec::StepScalars* scalars = nullptr;
    spec::StepOutcome* outcome = nullptr;
};

void gradient_squares(const GradientSquaresArgs& args, cudaStream_t stream);
void finish_gradient_norm(const GradientNormArgs& args, cudaStream_t stream);

}  // namespace unsloth::kernels
