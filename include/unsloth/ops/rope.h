// Rotary position embedding in the half-split ("rotate_half") layout of transformers (Su et al., 2021).
#pragma once

#include "unsloth/ops/gemm_coded.h"

namespace unsloth::ops {

/// cos_Tp, sin_Tp (fp32, [T, d/2]) = cos/sin(position * inv_freq) * attention_scaling, the angle rounded to fp32 as
/// transformers does. positions_T: int32; inv_freq_p: fp32 [d/2]. With axis_p (int32 [d/2]) a token has A positions,
/// positions_TA [T, A], and frequency i turns by the one of axis axis_p[i] (M-RoPE, and the two axes of an image).
void rope_table(Context& ctx, const at::Tensor& positions_T, const at::Tensor& inv_freq_p, double attention_scaling,
                const at::Tensor& cos_Tp, const at::Tensor& sin_Tp, const at::Tensor& axis_p = {});

/// Rotates x_THd [T, H, d] in place (any strides but the last): y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin, halves of
/// d. `backward` applies the transpose (sin negated). fp32 arithmetic, rounded once to x's dtype.
void rope_apply(Context& ctx, const at::Tensor& x_THd, const at::Tensor& cos_Tp, const at::Tensor& sin_Tp,
                bool backward);

/// rope_apply on the first `heads` heads of x_TC's rows of C / d heads; `codes` (may be empty) receive those of the
/// whole rows, as ops/coded_rows.h makes them; codes_alone: x_TC is not read after it.
void rope_apply_rows(Context& ctx, const at::Tensor& x_TC, int64_t heads, const at::Tensor& cos_Tp,
                     const at::Tensor& sin_Tp, bool backward, const CodedMatrix& codes = {}, bool codes_alone = false);

}  // namespace unsloth::ops
