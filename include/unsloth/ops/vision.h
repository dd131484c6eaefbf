// What a tower over image patches computes apart from products, RMSNorm and rotations; backward where its adapters
// are trained.
//
// Legend: P patches, C hidden, F intermediate.
#pragma once

#include "unsloth/ops/context.h"

namespace unsloth::ops {

/// out_PK = the values of a patch's bytes, of each of `frames` equal frames: [P, channels, frames, area]. bytes: uint8
/// [P, channels * area]; value_CB: fp32 [channels, 256], the value of each byte of a channel. out: compute dtype,
/// contiguous, rounded once.
void patch_values(Context& ctx, const at::Tensor& bytes_PK, const at::Tensor& value_CB, int64_t frames,
                  const at::Tensor& out_PK);

/// x_PC += the sum of share_P4[p][j] * table_NC[index_P4[p][j]] over j. index int32 and share fp32, [P, 4]; table and x
/// in the compute dtype; summed in fp32, rounded once.
void add_interpolated(Context& ctx, const at::Tensor& table_NC, const at::Tensor& index_P4, const at::Tensor& share_P4,
                      const at::Tensor& x_PC);

/// LayerNorm (Ba et al., 2016): y = (x - mean) / sqrt(variance + eps) * weight + bias, of each row. weight and bias:
/// fp32 [C]; x and y in the compute dtype, rows contiguous; y may be x. fp32 arithmetic, rounded once.
void layer_norm_forward(Context& ctx, const at::Tensor& x_PC, const at::Tensor& weight_C, const at::Tensor& bias_C,
                        double eps, const at::Tensor& y_PC);

/// dx += the gradient with respect to x, given dy. weight: fp32 [C]; x, dy and dx in the compute dtype, rows
/// contiguous; dx aliases neither. Mean and deviation are computed again. fp32 arithmetic, rounded once.
void layer_norm_backward(Context& ctx, const at::Tensor& dy_PC, const at::Tensor& x_PC, const at::Tensor& weight_C,
                         double eps, const at::Tensor& dx_PC);

/// How GELU (Hendrycks & Gimpel, 2016) is computed: x/2 (1 + erf(x / sqrt 2)), or with tanh in place of erf.
enum class Gelu : uint8_t { erf, tanh };
/// In place, rows contiguous; fp32 arithmetic, rounded once.
void gelu(Context& ctx, const at::Tensor& x_PF, Gelu form);
/// Overwrites dy_PF, the gradient of gelu(x), with that of x. As gelu; x is what it was before.
void gelu_backward(Context& ctx, const at::Tensor& x_PF, Gelu form, const at::Tensor& dy_PF);

}  // namespace unsloth::ops
