// SwiGLU and its gradient for one element, as every kernel that contains them computes it.
#pragma once

namespace unsloth::kernels {

__device__ __forceinline__ float sigmoid(float v) {
    return __fdividef(1.f, 1.f + __expf(-v));
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
