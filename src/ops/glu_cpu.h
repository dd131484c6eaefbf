// A gated unit and its gradient for one element: the CPU's form of kernels/swiglu_math.cuh.
#pragma once

#include <cmath>
#include <type_traits>

#include "unsloth/spec/gate_activation.h"

namespace unsloth::ops::cpu {

struct GluGradients {
    float gate, up, act;  ///< the last: the forward's output
};

struct SiluGlu {
    static float sigmoid(float v) { return 1.f / (1.f + std::exp(-v)); }
    static float of(float gate, float up, float /*limit*/ = spec::default_gate_limit) {
        return gate * sigmoid(gate) * up;
    }
    static GluGradients gradients(float dact, float gate, float up, float /*limit*/ = spec::default_gate_limit) {
        const float s = sigmoid(gate);
        return {dact * up * s * (1.f + gate * (1.f - s)), dact * (gate * s), gate * s * up};
    }
};

struct GeluTanhGlu {
    static constexpr float slope = 0.7978845608028654f, cubic = 0.044715f;  // sqrt(2 / pi)
    static float inner(float v) { return std::tanh(slope * (v + cubic * v * v * v)); }
    static float of(float gate, float up, float /*limit*/ = spec::default_gate_limit) {
        return 0.5f * gate * (1.f + inner(gate)) * up;
    }
    static GluGradients gradients(float dact, float gate, float up, float /*limit*/ = spec::default_gate_limit) {
        const float t = inner(gate), half = 0.5f * (1.f + t);
        const float turn = 0.5f * gate * (1.f - t * t) * slope * (1.f + 3.f * cubic * gate * gate);
        return {dact * up * (half + turn), dact * (gate * half), gate * half * up};
    }
};

struct ClampedSiluGlu {
    static constexpr float alpha = 1.702f;
    /// NaN remains.
    static float at_most(float v, float limit) { return v > limit ? limit : v; }
    static float within(float v, float limit) { return v < -limit ? -limit : at_most(v, limit); }
    static float of(float gate, float up, float limit = spec::default_gate_limit) {
        const float g = at_most(gate, limit);
        return g * SiluGlu::sigmoid(alpha * g) * (within(up, limit) + 1.f);
    }
    static GluGradients gradients(float dact, float gate, float up, float limit = spec::default_gate_limit) {
        const float g = at_most(gate, limit), shifted = within(up, limit) + 1.f, s = SiluGlu::sigmoid(alpha * g);
        return {gate > limit ? 0.f : dact * shifted * s * (1.f + alpha * g * (1.f - s)),
                up > limit || up < -limit ? 0.f : dact * (g * s), g * s * shifted};
    }
};

/// work(the activation's unit)
template <class Work>
void with_glu(spec::GateActivation activation, const Work& work) {
    switch (activation) {
        case spec::GateActivation::silu:
            return work(SiluGlu());
        case spec::GateActivation::gelu_tanh:
            return work(GeluTanhGlu());
        case spec::GateActivation::clamped_silu:
            return work(ClampedSiluGlu());
    }
}

}  // namespace unsloth::ops::cpu
