// DoRA (Liu et al., "DoRA: Weight-Decomposed Low-Rank Adaptation", 2024): y = c ∘ z + bias with z = x · (W + sBA)ᵀ,
// c = m / ‖W + sBA‖ by rows. The norm counts as a constant in the backward pass (section 4.3 there, and PEFT). BA is
// never formed: ‖w + sbA‖² = ‖w‖² + 2 sb·(A w) + sb·(A Aᵀ)·sb.
//
// Legend: T tokens, N outputs, K inputs, r a projection's rank, F half of the fused [gate | up] buffer's columns.
#pragma once

#include <vector>

#include "unsloth/ops/context.h"
#include "unsloth/spec/gate_activation.h"

namespace unsloth::ops {

/// out_N [N] fp32 = the sum of squares of each row of w_NK (fp32, bf16 or f16; row stride free).
void row_square_sums(Context& ctx, const at::Tensor& w_NK, const at::Tensor& out_N);

struct DoraNorms {
    at::Tensor base_N;              ///< ‖w‖²; all here fp32 but b_Nr
    at::Tensor b_Nr;                ///< s·B, fp32, bf16 or f16; row stride free
    at::Tensor wa_rN, gram_rr;      ///< A·Wᵀ and A·Aᵀ; row strides free
    at::Tensor magnitude_N;         ///< m
    at::Tensor scale_N, inverse_N;  ///< written: m / ‖w + sbA‖ and 1 / ‖w + sbA‖, both 0 where the norm is
};
void dora_norms(Context& ctx, const DoraNorms& args);

/// What scales N outputs: [N], fp32; bias in the outputs' dtype, undefined: none.
struct OutputScale {
    at::Tensor scale_N, inverse_N, bias_N;
};

/// y_TN = scale ∘ z_TN + bias (+ residual_TN, undefined: none). One dtype; row strides free; y may be residual.
void dora_forward(Context& ctx, const at::Tensor& z_TN, const OutputScale& scale, const at::Tensor& residual_TN,
                  const at::Tensor& y_TN);

/// Where a projection's gradient of m goes: fp32 [n], added to, for the columns from n_begin on.
struct MagnitudeGradient {
    int64_t n_begin = 0;
    at::Tensor out_n;
};

/// dz_TN = scale ∘ dy_TN; dm += inverse ∘ Σ_T dy ∘ z. dz may be dy. Sums in a fixed order; CUDA works in ctx.workspace.
void dora_backward(Context& ctx, const at::Tensor& dy_TN, const at::Tensor& z_TN, const OutputScale& scale,
                   const at::Tensor& dz_TN, const std::vector<MagnitudeGradient>& gradients);

/// SwiGLU (ops/swiglu.h) of scale ∘ z + bias, which is nowhere written. z_T2F [gate | up].
void dora_swiglu_forward(Context& ctx, const at::Tensor& z_T2F, const OutputScale& scale, const at::Tensor& act_TF,
                         spec::GateActivation activation = spec::GateActivation::silu);

/// Overwrites z_T2F with its gradient and adds those of m; act_TF receives what the forward gave, and may be dact_TF.
void dora_swiglu_backward(Context& ctx, const at::Tensor& dact_TF, const at::Tensor& z_T2F, const OutputScale& scale,
                          const at::Tensor& act_TF, const std::vector<MagnitudeGradient>& gradients,
                          spec::GateActivation activation = spec::GateActivation::silu);

/// Bytes that ctx.workspace must have for either backward of this many tokens and columns (0 on the CPU).
int64_t dora_backward_workspace(at::Device device, int64_t tokens, int64_t columns);

}  // namespace unsloth::ops
