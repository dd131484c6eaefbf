// RMSNorm (Zhang & Sennrich, 2019) over rows, and Qwen3's RMSNorm over head_dim.
//
// Legend: T tokens, D hidden, H heads, d head_dim. Row-strided inputs are allowed: the last dimension must be
// contiguous, the others may have any stride. Arithmetic in fp32, results rounded once to the output's dtype.
#pragma once

#include "unsloth/ops/gemm_coded.h"

namespace unsloth::ops {

/// y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps).
/// x_TD and y_TD: compute dtype (y may be a wider buffer's slice); weight_D: fp32 or compute dtype; rstd_T: fp32.
/// A row whose sum of squares is not finite lowers outcome->first_bad_site to `site` (atomic minimum). `codes` (may be
/// empty) receive y's, as ops/coded_rows.h makes them.
void rms_norm_forward(Context& ctx, const at::Tensor& x_TD, const at::Tensor& weight_D, double eps,
                      const at::Tensor& y_TD, const at::Tensor& rstd_T, Site site = {}, const CodedMatrix& codes = {});

/// dx += gradient with respect to x (the residual stream's gradient is accumulated in place; dx_TD in compute dtype,
/// added in fp32 and rounded once). dweight_D (fp32, may be undefined): += gradient with respect to weight, in a fixed
/// order of summation. A non-finite row of the result reports `site`. y_TD, where defined, receives what
/// rms_norm_forward gave, bit for bit, in the same pass (5 D read and written a token, 6 D as two calls); it may be
/// dy_TD.
void rms_norm_backward(Context& ctx, const at::Tensor& dy_TD, const at::Tensor& x_TD, const at::Tensor& weight_D,
                       const at::Tensor& rstd_T, const at::Tensor& dx_TD, const at::Tensor& dweight_D, Site site = {},
                       const at::Tensor& y_TD = {});

/// Qwen3's q_norm/k_norm: x_THd and y_THd [T, H, d], each head normalised over d; rstd_TH fp32. y may be x.
void head_norm_forward(Context& ctx, const at::Tensor& x_THd, const at::Tensor& weight_d, double eps,
                       const at::Tensor& y_THd, const at::Tensor& rstd_TH);

/// dx_THd = (not +=) the gradient with respect to x; dx may be dy. dweight_d (fp32, may be undefined): +=.
void head_norm_backward(Context& ctx, const at::Tensor& dy_THd, const at::Tensor& x_THd, const at::Tensor& weight_d,
                        const at::Tensor& rstd_TH, const at::Tensor& dx_THd, const at::Tensor& dweight_d);

/// Bytes of ctx.workspace (16-byte aligned) that the two backwards take when `dweight` is wanted: rows = T, columns =
/// D, or rows = T * H, columns = d (0 on the CPU).
int64_t norm_backward_workspace(at::Device device, int64_t rows, int64_t columns);

}  // namespace unsloth::ops
