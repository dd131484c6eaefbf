// What a value head does to its state at a token (include/unsloth/ops/gated_delta.h).
#pragma once

#include "kernels/common/device.cuh"
#include "kernels/delta_rule.h"

namespace unsloth::kernels::delta {

inline constexpr float length_eps = 1e-6f;

__device__ __forceinline__ float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

struct Gates {
    float beta, log_decay, slope;  ///< slope: of log_decay by a
};
template <class T>
__device__ __forceinline__ Gates gates_of(const DeltaRead& in, int64_t token, int head) {
    const float b = to_float(static_cast<const T*>(in.b.data)[token * in.b.stride + head]);
    const float a = to_float(static_cast<const T*>(in.a.data)[token * in.a.stride + head]) + in.dt_bias[head];
    const float rate = -expf(in.a_log[head]);
    return {sigmoid(b), rate * (a > 20.0f ? a : log1pf(expf(a))), rate * sigmoid(a)};
}

}  // namespace unsloth::kernels::delta
