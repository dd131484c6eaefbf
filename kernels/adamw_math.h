// The arithmetic of one AdamW element, shared by the CPU operator and the kernel: strict fp32, every
// operation rounded on its own (a fused multiply-add or an approximate division would change codes).
//
// Sources: Loshchilov & Hutter, "Decoupled Weight Decay Regularization"; Dettmers et al., "8-bit Optimizers
// via Block-wise Quantization". The order of operations is torch.optim.AdamW's (32-bit) and bitsandbytes'
// CUDA kernel's (8-bit).
#pragma once

#include <cmath>
#include <cstdint>

#include "unsloth/spec/finite_sites.h"
#include "unsloth/spec/step_scalars.h"

#ifdef __CUDACC__
#define UNSLOTH_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define UNSLOTH_HOST_DEVICE inline
#endif

namespace unsloth::kernels::adamw {

#ifdef __CUDA_ARCH__
UNSLOTH_HOST_DEVICE float mul(float a, float b) {
    return __fmul_rn(a, b);
}
UNSLOTH_HOST_DEVICE float add(float a, float b) {
    return __fadd_rn(a, b);
}
UNSLOTH_HOST_DEVICE float sub(float a, float b) {
    return __fsub_rn(a, b);
}
UNSLOTH_HOST_DEVICE float div(float a, float b) {
    return __fdiv_rn(a, b);
}
UNSLOTH_HOST_DEVICE float root(float a) {
    return __fsqrt_rn(a);
}
#else
UNSLOTH_HOST_DEVICE float mul(float a, float b) {
    return a * b;
}
UNSLOTH_HOST_DEVICE float add(float a, float b) {
    return a + b;
}
UNSLOTH_HOST_DEVICE float sub(float a, float b) {
    return a - b;
}
UNSLOTH_HOST_DEVICE float div(float a, float b) {
    return a / b;
}
UNSLOTH_HOST_DEVICE float root(float a) {
    return sqrtf(a);
}
#endif

/// What stays the same over a run; `rest` = 1 - beta. The 32-bit form rounds 1 - beta from fp64 (as torch
/// does), the 8-bit one subtracts in fp32 (as bitsandbytes does).
struct Constants {
    float beta1, beta2, eps, weight_decay;
    float rest1_from_f64, rest2_from_f64;
    float rate_factors[4];  ///< of each group of blocks, on the learning rate
};

/// What is the same for all elements of a step that share a learning rate.
struct Factors {
    float clip;          ///< on the gradient
    float keep;          ///< 1 - lr * weight_decay
    float minus_step32;  ///< -lr / bias_correction1
    float correction2;   ///< sqrt(bias_correction2)
    float step8;         ///< -lr * correction2 / bias_correction1
    float eps8;          ///< correction2 * eps
    float rest1_8, rest2_8;
};

UNSLOTH_HOST_DEVICE Factors make_factors(const Constants& c, const spec::StepScalars& s, float clip, int rate_group) {
    const float rate = mul(s.learning_rate, c.rate_factors[rate_group]);
    Factors f;
    f.clip = clip;
    f.keep = sub(1.0F, mul(rate, c.weight_decay));
    f.minus_step32 = -div(rate, s.bias_correction1);
    f.correction2 = root(s.bias_correction2);
    f.step8 = div(mul(-rate, f.correction2), s.bias_correction1);
    f.eps8 = mul(f.correction2, c.eps);
    f.rest1_8 = sub(1.0F, c.beta1);
    f.rest2_8 = sub(1.0F, c.beta2);
    return f;
}

/// torch.optim.AdamW: decay, then the update.
UNSLOTH_HOST_DEVICE void element_32bit(const Constants& c, const Factors& f, bool decays, float gradient, float& p,
                                       float& m, float& v) {
    const float g = mul(gradient, f.clip);
    if (decays) p = mul(p, f.keep);
    m = add(m, mul(c.rest1_from_f64, sub(g, m)));
    v = add(mul(v, c.beta2), mul(mul(c.rest2_from_f64, g), g));
    const float denominator = add(div(root(v), f.correction2), c.eps);
    p = add(p, div(mul(f.minus_step32, m), denominator));
}

/// bitsandbytes' new moments from the dequantised ones. `v_floor`: see v_floor_8bit.
UNSLOTH_HOST_DEVICE void moments_8bit(const Constants& c, const Factors& f, float gradient, float v_floor, float& m,
                                      float& v) {
    const float g = mul(gradient, f.clip);
    m = add(mul(m, c.beta1), mul(f.rest1_8, g));
    v = add(mul(v, c.beta2), mul(mul(f.rest2_8, g), g));
    if (v < v_floor) v = v_floor;
}

/// bitsandbytes' update by `direction` = m / (root(v) + eps8), decay after it.
UNSLOTH_HOST_DEVICE float updated_8bit(const Factors& f, bool decays, float direction, float p) {
    p = add(p, mul(f.step8, direction));
    return decays ? mul(p, f.keep) : p;
}

UNSLOTH_HOST_DEVICE void element_8bit(const Constants& c, const Factors& f, bool decays, float gradient, float v_floor,
                                      float& p, float& m, float& v) {
    moments_8bit(c, f, gradient, v_floor, m, v);
    p = updated_8bit(f, decays, div(m, add(root(v), f.eps8)), p);
}

inline constexpr int zero_code_m = 127;  ///< the signed map's entry 0
inline constexpr int zero_code_v = 0;    ///< the unsigned map's entry 0

/// A second moment that rounded to 0 while its first moment did not is unknown: it is between 0 and the map's
/// first step.
UNSLOTH_HOST_DEVICE bool v_is_unknown(int code_m, int code_v) {
    return code_v == zero_code_v && code_m != zero_code_m;
}
/// Guard: with such a second moment a gradient of (nearly) zero would divide m by eps alone and the element
/// would jump, so v does not fall below what the smallest non-zero entry would have become. `smallest`: that
/// entry, maps[256 + 1].
UNSLOTH_HOST_DEVICE float v_floor_8bit(const Constants& c, int code_m, int code_v, float smallest, float absmax_v) {
    return v_is_unknown(code_m, code_v) ? mul(mul(smallest, absmax_v), c.beta2) : 0.0F;
}

/// The code of x in a 256-entry ascending map: the nearest entry, an x on a midpoint takes the even code
/// (which is what bitsandbytes' search amounts to). midpoints[i] = (map[i] + map[i + 1]) / 2; `guess` in
/// 0..255 only saves time.
UNSLOTH_HOST_DEVICE int nearest_code(float x, const float* midpoints, int guess) {
    int code = guess;
    while (code > 0 && x <= midpoints[code - 1]) --code;
    while (code < 255 && x > midpoints[code]) ++code;
    if (code < 255 && x == midpoints[code] && code % 2 == 1) ++code;
    return code;
}

/// The code of the first moment m = x * absmax: its entry must not have another sign bit than m.
UNSLOTH_HOST_DEVICE int with_sign_of(float m, int code) {
    const bool entry_negative = code < zero_code_m;
    if (entry_negative == (std::signbit(m) != 0)) return code;
    return m > 0.0F ? code + 1 : code - 1;
}

/// Writes the norm, the factor on gradients (clipping as torch.nn.utils.clip_grad_norm_, without the loss
/// scale) and whether the update is skipped. A norm that is not finite counts as a non-finite value:
/// the step in flight after it must not be applied either.
UNSLOTH_HOST_DEVICE void finish_gradient_norm(double sum_of_squares, const spec::StepScalars& scalars,
                                              spec::StepOutcome& outcome) {
    const double norm = sqrt(sum_of_squares) / static_cast<double>(scalars.loss_scale);
    const bool finite = norm <= 3.402823466e38;  // as fp32; false for a NaN
    double clip = 1.0;
    if (scalars.max_grad_norm > 0.0F) {
        const double ratio = static_cast<double>(scalars.max_grad_norm) / (norm + 1e-6);
        clip = ratio < 1.0 ? ratio : 1.0;
    }
    outcome.grad_norm = static_cast<float>(norm);
    if (!finite && outcome.first_bad_site == spec::all_finite) outcome.first_bad_site = spec::bad_gradient_norm;
    outcome.skipped = outcome.first_bad_site == spec::all_finite ? 0 : 1;
    outcome.clip = outcome.skipped != 0 ? 0.0F : static_cast<float>(clip / static_cast<double>(scalars.loss_scale));
}

}  // namespace unsloth::kernels::adamw
