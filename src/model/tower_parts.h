// What towers over images share, whatever their images are made of.
#pragma once

#include <cmath>

#include "unsloth/ops/attention.h"
#include "unsloth/ops/gemm.h"
#include "unsloth/ops/lora.h"
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

/// Of all of a tower's blocks.
inline ops::AttentionShape tower_attention(const spec::VisionSpec& spec) {
    return {.heads = spec.num_heads,
            .kv_heads = spec.num_heads,
            .head_dim = spec.head_dim(),
            .scale = 1.0 / std::sqrt(static_cast<double>(spec.head_dim()))};
}

/// An adapter's inner values x Aᵀ, in the first columns of a flat buffer. Of x only the adapter's inputs are read:
/// zeros follow them.
inline at::Tensor adapter_values(ops::Context& ctx, const weights::VisionAdapter& adapter, const at::Tensor& x,
                                 const at::Tensor& flat) {
    const at::Tensor u_PR = matrix_of(flat, x.size(0), adapter.a_RK.size(0));
    ops::lora_u(
        ctx,
        {.x_TK = x.narrow(1, 0, adapter.a_RK.size(1)), .a_RK = adapter.a_RK, .u_TR = u_PR, .label = "lora xA tower"});
    return u_PR;
}

/// out = x Wᵀ + b, or added to out; with the adapters' part where there is a `u` (VisionBuffers::u).
inline void multiply(ops::Context& ctx, const weights::VisionLinear& w, const at::Tensor& x, const at::Tensor& out,
                     bool adds = false, const at::Tensor& u = {}) {
    ops::Gemm product{
        .a = x, .b = w.values(ctx), .out = out, .transpose_b = true, .beta = adds ? 1.0 : 0.0, .label = "gemm tower"};
    if (w.bias_N.defined()) product.bias = w.bias_N;
    ops::gemm(ctx, product);
    if (!u.defined()) return;
    for (const weights::VisionAdapter& adapter : w.adapters)
        ops::gemm(ctx, {.a = adapter_values(ctx, adapter, x, u),
                        .b = adapter.b_NR,
                        .out = out.narrow(1, adapter.n_begin, adapter.b_NR.size(0)),
                        .transpose_b = true,
                        .beta = 1.0,
                        .label = "lora uB tower"});
}

}  // namespace unsloth::model
