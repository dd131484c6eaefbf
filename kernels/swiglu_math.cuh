// A gated unit (Shazeer, 2020) and its gradient for one element, as every kernel that contains them computes it.
#pragma once

#include <type_traits>

#include "unsloth/spec/gate_activation.h"

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

struct SwigluGradients {
    float gate, up, act;  ///< the last: the forward's output
};

template <spec::GateActivation kGate>
struct Glu;

template <>
struct Glu<spec::GateActivation::silu> {
    static __device__ __forceinline__ float of(float gate, float up, float /*limit*/ = spec::default_gate_limit) {
        return gate * sigmoid(gate) * up;
    }
    static __device__ __forceinline__ SwigluGradients gradients(float dact, float gate, float up,
                                                                float /*limit*/ = spec::default_gate_limit) {
        const float s = sigmoid(gate);
        return {dact * up * s * (1.f + gate * (1.f - s)), dact * (gate * s), gate * s * up};
    }
};

template <>
struct Glu<spec::GateActivation::gelu_tanh> {
    static constexpr float slope = 0.7978845608028654f, cubic = 0.044715f;  // sqrt(2 / pi)
    static __device__ __forceinline__ float inner(float v) { return tanhf(slope * (v + cubic * v * v * v)); }
    static __device__ __forceinline__ float of(float gate, float up, float /*limit*/ = spec::default_gate_limit) {
        return 0.5f * gate * (1.f + inner(gate)) * up;
    }
    static __device__ __forceinline__ SwigluGradients gradients(float dact, float gate, float up,
                                                                float /*limit*/ = spec::default_gate_limit) {
        const float t = inner(gate), half = 0.5f * (1.f + t);
        const float turn = 0.5f * gate * (1.f - t * t) * slope * (1.f + 3.f * cubic * gate * gate);
        return {dact * up * (half + turn), dact * (gate * half), gate * half * up};
    }
};

template <>
struct Glu<spec::GateActivation::clamped_silu> {
    static constexpr float alpha = 1.702f;
    /// NaN remains.
    static __device__ __forceinline__ float at_most(float v, float limit) { return v > limit ? limit : v; }
    static __device__ __forceinline__ float within(float v, float limit) {
        return v < -limit ? -limit : at_most(v, limit);
    }
    static __device__ __forceinline__ float of(float gate, float up, float limit = spec::default_gate_limit) {
        const float g = at_most(gate, limit);
        return g * sigmoid(alpha * g) * (within(up, limit) + 1.f);
    }
    static __device__ __forceinline__ SwigluGradients gradients(float dact, float gate, float up,
                                                                float limit = spec::default_gate_limit) {
        const float g = at_most(gate, limit), shifted = within(up, limit) + 1.f, s = sigmoid(alpha * g);
        return {gate > limit ? 0.f : dact * shifted * s * (1.f + alpha * g * (1.f - s)),
                up > limit || up < -limit ? 0.f : dact * (g * s), g * s * shifted};
    }
};

/// launch(std::integral_constant of the activation).
template <class Launch>
void with_gate(spec::GateActivation gate, const Launch& launch) {
    using spec::GateActivation;
    switch (gate) {
        case GateActivation::silu:
            return launch(std::integral_constant<GateActivation, GateActivation::silu>());
        case GateActivation::gelu_tanh:
            return launch(std::integral_constant<GateActivation, GateActivation::gelu_tanh>());
        case GateActivation::clamped_silu:
            return launch(std::integral_constant<GateActivation, GateActivation::clamped_silu>());
    }
}

}  // namespace unsloth::kernels
