// How far a student's distribution is from its teacher's at one position, and what that asks of the student's logits.
// C++17, for host code and kernels; Real is float or double.
//
// A position's tokens are parted into classes: each token alone, or the teacher's most likely alone and all others
// together. p and q are a class's probabilities under teacher and student, both of logits divided by the temperature T.
//
// Sources: Hinton et al., "Distilling the Knowledge in a Neural Network" (temperature, its square, the share of the
// labels); Agarwal et al., "On-Policy Distillation of Language Models" (the generalised Jensen-Shannon divergence, as
// in TRL's GKD).
#pragma once

#include <cmath>
#include <cstdint>

#include "unsloth/spec/host_device.h"

namespace unsloth::spec {

enum class DivergenceType : uint8_t { forward_kl, reverse_kl, jsd };

/// The loss of a target is alpha T^2 D + (1 - alpha) cross-entropy.
struct DistillRule {
    DivergenceType type = DivergenceType::forward_kl;
    double beta = 0.5;  ///< jsd: beta KL(p || m) + (1 - beta) KL(q || m), m = beta p + (1 - beta) q
    double temperature = 1;
    double alpha = 0.5;
};

// Overloads, so that kernels stay in single precision.
UNSLOTH_HOST_DEVICE_FUNCTION float exp_of(float x) {
    return ::expf(x);
}
UNSLOTH_HOST_DEVICE_FUNCTION double exp_of(double x) {
    return ::exp(x);
}
UNSLOTH_HOST_DEVICE_FUNCTION float log_of(float x) {
    return ::logf(x);
}
UNSLOTH_HOST_DEVICE_FUNCTION double log_of(double x) {
    return ::log(x);
}

/// What a class adds to the divergence, and to the student's mean that the slope is measured from.
template <class Real>
struct DivergenceTerm {
    Real loss, centre;
};

/// log(beta p + (1 - beta) q)
template <class Real>
UNSLOTH_HOST_DEVICE_FUNCTION Real log_mixture(Real beta, Real log_p, Real log_q) {
    const Real highest = log_p > log_q ? log_p : log_q;
    return highest + log_of(beta * exp_of(log_p - highest) + (1 - beta) * exp_of(log_q - highest));
}

template <class Real>
UNSLOTH_HOST_DEVICE_FUNCTION DivergenceTerm<Real> divergence_term(DivergenceType type, Real beta, Real log_p,
                                                                  Real log_q) {
    const Real p = exp_of(log_p), q = exp_of(log_q);  // a probability of 0 adds nothing, whatever its logarithm
    if (type == DivergenceType::forward_kl) return {p > 0 ? p * (log_p - log_q) : p, 0};
    if (type == DivergenceType::reverse_kl) {
        const Real term = q > 0 ? q * (log_q - log_p) : q;
        return {term, term};
    }
    if (!(p > 0) && !(q > 0)) return {p + q, p + q};  // zero, or not a number
    const Real log_m = log_mixture(beta, log_p, log_q);
    const Real of_student = q > 0 ? q * (log_q - log_m) : q;
    return {beta * (p > 0 ? p * (log_p - log_m) : p) + (1 - beta) * of_student, of_student};
}

/// The divergence's derivative by the student's logits / T, summed over a class; `centre`: the sum of all terms'. A
/// token has its share of that: its part of the class's q.
template <class Real>
UNSLOTH_HOST_DEVICE_FUNCTION Real divergence_slope(DivergenceType type, Real beta, Real log_p, Real log_q,
                                                   Real centre) {
    const Real q = exp_of(log_q);
    if (type == DivergenceType::forward_kl) return q - exp_of(log_p);
    if (!(q > 0)) return q;
    if (type == DivergenceType::reverse_kl) return q * (log_q - log_p - centre);
    return (1 - beta) * q * (log_q - log_mixture(beta, log_p, log_q) - centre);
}

}  // namespace unsloth::spec
