// Rows in 8-bit floats: e4m3 codes with one fp32 scale a row (Micikevicius et al., "FP8 Formats for Deep
// Learning", 2022), made together with the rows.
//
// scale = largest magnitude of the row / 448, but at least 2^-126, whose inverse is finite; 1 for a row of
// zeros. code = value * (1 / scale), rounded to nearest, ties to even; no value exceeds 448 after the
// product. Each function that makes a row and its codes equals the plain operator followed by
// quantize_rows: what is quantised is the rounded result. A row with a value that is not finite gets a
// scale that is not finite, so that products with it are not finite either; its codes are unspecified.
//
// CUDA: bf16 rows of a multiple of 8 columns, up to coded_longest_row (what makes no rows, quantize_rows and
// dequantize_rows: 2^24), with 16-byte aligned starts. CPU: fp32, bf16 and f16, any shape, the same codes for the
// same rows. CheckError otherwise. `codes` is contiguous, float8_e4m3fn or uint8.
//
// Legend: T tokens, C columns, D hidden, F intermediate, N outputs and K inputs of a weight, d head_dim, p =
// d / 2.
#pragma once

#include "unsloth/ops/context.h"
#include "unsloth/ops/gemm_coded.h"

namespace unsloth::ops {

/// Whether cards of this compute capability multiply e4m3 matrices with a scale for each row. cuBLASLt has such
/// products for 9.0 alone: 8.9 takes one scale a matrix, 10.0 and later scales of blocks.
constexpr bool coded_serves(int major, int minor) {
    return major == 9 && minor == 0;
}
/// Whether this device does; the CPU does, as the reference.
bool coded_available(at::Device device);

/// Columns of the longest row that this device makes together with its codes; a row of gate and up has 2F.
int64_t coded_longest_row(at::Device device);

/// The first rows x columns of scratch as a matrix: scratch.codes holds at least as many elements,
/// scratch.scales as many rows.
CodedMatrix coded_view(const CodedMatrix& scratch, int64_t rows, int64_t columns);

/// out [T, C] from x_TC, row stride free. Nothing where `out` is empty: nobody reads codes.
void quantize_rows(Context& ctx, const at::Tensor& x_TC, const CodedMatrix& out_TC);

/// out_TC = codes * scales, in fp32 and rounded once; row stride free, as quantize_rows takes rows.
void dequantize_rows(Context& ctx, const CodedMatrix& x_TC, const at::Tensor& out_TC);

/// out [K, N]: the transpose of w_NK, quantised by its own rows. For loading: reads w twice, below copy
/// speed. CUDA: N a multiple of 4 and K of 8, w's rows aligned to 16 bytes.
void quantize_columns(Context& ctx, const at::Tensor& w_NK, const CodedMatrix& out_KN);

/// rms_norm_forward, and y's codes. y_TD may be undefined: the codes alone are wanted.
void rms_norm_forward_coded(Context& ctx, const at::Tensor& x_TD, const at::Tensor& weight_D, double eps,
                            const at::Tensor& y_TD, const at::Tensor& rstd_T, const CodedMatrix& out_TD,
                            Site site = {});

/// swiglu_forward, and act's codes. act_TF may be undefined: the codes alone are wanted.
void swiglu_forward_coded(Context& ctx, const at::Tensor& gu_T2F, const at::Tensor& act_TF, const CodedMatrix& out_TF);

/// swiglu_backward, and the codes of [dgate | dup]. act_TF, where defined, receives the activation; it may be
/// dact_TF.
void swiglu_backward_coded(Context& ctx, const at::Tensor& dact_TF, const at::Tensor& gu_T2F, const at::Tensor& act_TF,
                           const CodedMatrix& out_T2F);

/// rope_apply on the first `heads` heads of x_TC's rows of C / d heads, and the codes of the whole rows: q
/// and k turn, v is quantised as it is. d is twice the width of cos_Tp. CUDA: d a multiple of 16.
void rope_apply_coded(Context& ctx, const at::Tensor& x_TC, int64_t heads, const at::Tensor& cos_Tp,
                      const at::Tensor& sin_Tp, bool backward, const CodedMatrix& out_TC);

}  // namespace unsloth::ops
