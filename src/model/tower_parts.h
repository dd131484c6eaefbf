// What towers over images have in common, whatever their images are made of.
#pragma once

#include "unsloth/ops/gemm.h"
#include "unsloth/weights/vision_weights.h"

namespace unsloth::model {

/// The first values of a flat buffer as a matrix.
inline at::Tensor matrix_of(const at::Tensor& flat, int64_t rows, int64_t columns) {
    return flat.narrow(0, 0, rows * columns).view({rows, columns});
}

/// Columns [begin, begin + heads d) of a packed matrix as [P, heads, d].
inline at::Tensor heads_of(const at::Tensor& x_PN, int64_t begin, int64_t heads, int64_t d) {
    return x_PN.narrow(1, begin, heads * d).unflatten(1, {heads, d});
}

/// out = x Wᵀ + b, or added to out.
inline void multiply(ops::Context& ctx, const weights::VisionLinear& w, const at::Tensor& x, const at::Tensor& out,
                     bool adds = false) {
    ops::Gemm product{
        .a = x, .b = w.weight_NK, .out = out, .transpose_b = true, .beta = adds ? 1.0 : 0.0, .label = "gemm tower"};
    if (w.bias_N.defined()) product.bias = w.bias_N;
    ops::gemm(ctx, product);
}

}  // namespace unsloth::model
