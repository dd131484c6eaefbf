// What changes from step to step, kept on the device so that kernels (and captured graphs) read it there.
// C++17, plain data: shared by host code and kernels.
#pragma once

#include <cstdint>

namespace unsloth::spec {

/// Written by the host before a step (one small copy to the device).
struct StepScalars {
    uint32_t step;              ///< optimizer step, from 1
    uint32_t epoch;             ///< for dropout's counter
    uint32_t seed_lo, seed_hi;  ///< dropout's key
    float learning_rate;
    float bias_correction1;  ///< 1 - beta1^t
    float bias_correction2;  ///< 1 - beta2^t
    float inv_loss_divisor;  ///< 1 / labels of the whole step (all micro-batches, all ranks)
    float loss_scale;        ///< fp16's factor on the loss; 1 otherwise
    float max_grad_norm;     ///< <= 0: no clipping
};

/// Where a value first stopped being finite, in the order of execution. 0xFFFFFFFF: nowhere.
/// code = micro_batch_site: forward sites count up from 0, backward sites follow them.
inline constexpr uint32_t all_finite = 0xFFFFFFFFu;

/// Written by the device; the host reads it one step late.
struct StepOutcome {
    float loss;               ///< sum of token losses / divisor
    float grad_norm;          ///< global L2 norm before clipping, loss scale removed
    float clip;               ///< factor that the optimizer multiplies gradients by (clipping and 1/loss_scale)
    uint32_t skipped;         ///< 1: the norm was not finite and the update was skipped
    uint32_t first_bad_site;  ///< smallest site code that saw a non-finite value
};

}  // namespace unsloth::spec
