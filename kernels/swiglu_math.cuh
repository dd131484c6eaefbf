// SwiGLU and its gradient for one element, as every kernel that contains them computes it.
#pragma once

namespace unsloth::kernels {

/// As __fdividef(1, 1 + __expf(-v)), bit for bit, without what those do for the smallest and the largest numbers: 1
/// takes no notice of a power that is subnormal, and of a sum beyond 2^126 0 is left either way.
__device__ __forceinline__ float sigmoid(float v) {
    constexpr float log2_of_e = 1.4426950408889634f;
    float power, s;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(v * -log2_of_e));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.f + power));
    return s;
}

__device__ __forceinline__ float swiglu(float gate, float up) {
    return gate * sigmoid(gate) * up;
}

struct SwigluGradients {
    float gate, up, act;  ///< the last: the forward's output
};
__device__ __forceinline__ SwigluGradients swiglu_gradients(float dact, float gate, float up) {
    const float s = sigmoid(gate);
    return {dact * up * s * (1.f + gate * (1.f - s)), dact * (gate * s), gate * s * up};
}

}  // namespace unsloth::kernels
