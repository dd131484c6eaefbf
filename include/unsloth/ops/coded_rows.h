// Rows in 8 bits, made together with the rows: e4m3 codes with one fp32 scale a row (Micikevicius et al., "FP8 Formats
// for Deep Learning", 2022), or int8 codes with one for 256 columns of a row (of weights: for a row).
//
// scale = largest magnitude / 448 (int8: 127), but at least 2^-126, whose inverse is finite; 1 where all are zeros.
// code = value * (1 / scale), rounded to nearest, ties to even (of e4m3 the product to fp32 first); no value exceeds
// 448 (127) after the product. Each function that makes a row and its codes equals the plain operator followed by
// quantize_rows: what is quantised is the rounded result. A value that is not finite makes its scale not finite, so
// that products with it are not finite either; the codes are unspecified.
//
// int8 has no exponents, so weights are levelled before they become codes: a column whose largest magnitude is off the
// columns' median by more than two powers of two is divided by the one that brings it there, and x is multiplied by it
// (CodedMatrix::factors). A network computes the same when a channel is multiplied by a factor before a product and its
// column of the weights divided by it (x in its own type, but f16 in fp32), and trained ones have such channels (Xiao
// et al., "SmoothQuant", 2023; here the factors follow from the weights alone, and cost no bit).
//
// CUDA: bf16 rows of a multiple of 8 columns, up to coded_longest_row (e4m3 of what makes no rows, quantize_rows and
// dequantize_rows: 2^24), with 16-byte aligned starts. CPU: fp32, bf16 and f16, any shape, the same codes for the same
// rows. CheckError otherwise.
//
// Legend: T tokens, C columns, D hidden, F intermediate, N outputs and K inputs of a weight, d head_dim, p =
// d / 2.
#pragma once

#include "unsloth/ops/context.h"
#include "unsloth/ops/gemm_coded.h"
#include "unsloth/spec/coded_products.h"
#include "unsloth/spec/gate_activation.h"

namespace unsloth::ops {

/// Whether cards of this compute capability multiply such matrices. cuBLASLt has products of e4m3 matrices with a scale
/// for each row for 9.0 alone (8.9 takes one scale a matrix, 10.0 and later scales of blocks); int8's are our kernels',
/// one of them for all cards.
constexpr bool coded_serves(spec::Codes codes, int major, int minor) {
    return codes == spec::Codes::int8 ? major >= 8 : major == 9 && minor == 0;
}
/// Whether this device does; the CPU does, as the reference.
bool coded_available(at::Device device, spec::Codes codes);

/// Columns of the longest row that this device makes together with its codes; a row of gate and up has 2F.
int64_t coded_longest_row(at::Device device);

/// The type of codes' elements.
at::ScalarType type_of(spec::Codes codes);
/// Scales of rows x columns of x.
int64_t scales_of(spec::Codes codes, int64_t rows, int64_t columns);

/// The first rows x columns of scratch as x of a product: scratch.codes holds at least as many bytes, scratch.scales
/// scales_of them; `type` that of the codes.
CodedMatrix coded_view(const CodedMatrix& scratch, int64_t rows, int64_t columns, at::ScalarType type);

/// That view for rows that `w` multiplies: of its kind, with its factors.
CodedMatrix codes_for(const CodedMatrix& w, const CodedMatrix& scratch, int64_t rows, int64_t columns);

/// out [T, C] from x_TC, row stride free. Nothing where `out` is empty: no GEMM reads quantized values. Where out is
/// int8 with a scale a row it is a weight: levels x, and writes out.factors.
void quantize_rows(Context& ctx, const at::Tensor& x_TC, const CodedMatrix& out_TC);

/// Of e4m3: out_TC = codes * scales, in fp32 and rounded once; row stride free, as quantize_rows takes rows.
void dequantize_rows(Context& ctx, const CodedMatrix& x_TC, const at::Tensor& out_TC);

/// out [K, N]: the transpose of w_NK, quantised by its own rows, int8 as quantize_rows does weights. For loading: reads
/// w twice, below copy speed. CUDA, e4m3: N a multiple of 4 and K of 8, w's rows aligned to 16 bytes.
void quantize_columns(Context& ctx, const at::Tensor& w_NK, const CodedMatrix& out_KN);

/// rms_norm_forward, and y's codes. y_TD may be undefined: the codes alone are wanted.
void rms_norm_forward_coded(Context& ctx, const at::Tensor& x_TD, const at::Tensor& weight_D, double eps,
                            const at::Tensor& y_TD, const at::Tensor& rstd_T, const CodedMatrix& out_TD,
                            Site site = {});

/// swiglu_forward, and act's codes. act_TF may be undefined: the codes alone are wanted.
void swiglu_forward_coded(Context& ctx, const at::Tensor& gu_T2F, const at::Tensor& act_TF, const CodedMatrix& out_TF,
                          spec::GateActivation activation = spec::GateActivation::silu);

/// swiglu_backward, and the codes of [dgate | dup]. act_TF, where defined, receives the activation; it may be
/// dact_TF. codes_alone: the gradient itself is not wanted, and gu_T2F is left as anything.
void swiglu_backward_coded(Context& ctx, const at::Tensor& dact_TF, const at::Tensor& gu_T2F, const at::Tensor& act_TF,
                           const CodedMatrix& out_T2F, bool codes_alone = false,
                           spec::GateActivation activation = spec::GateActivation::silu);

/// rope_apply on the first `heads` heads of x_TC's rows of C / d heads, and the codes of the whole rows: q
/// and k turn, v is quantised as it is. d is twice the width of cos_Tp. CUDA: d a multiple of 16. codes_alone: x_TC is
/// left as anything.
void rope_apply_coded(Context& ctx, const at::Tensor& x_TC, int64_t heads, const at::Tensor& cos_Tp,
                      const at::Tensor& sin_Tp, bool backward, const CodedMatrix& out_TC, bool codes_alone = false);

}  // namespace unsloth::ops
