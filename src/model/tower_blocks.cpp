// Legend: P rows of the tower, C its hidden size, H heads, d head_dim, F intermediate, R an adapter's columns.
#include "model/tower_blocks.h"

#include "unsloth/ops/norm.h"
#include "unsloth/ops/rope.h"
#include "unsloth/ops/rows.h"
#include "unsloth/ops/swiglu.h"

namespace unsloth::model {

BlocksBackward::BlocksBackward(ops::Context& ctx, const spec::VisionSpec& spec, const VisionBuffers& b,
                               const weights::Parameters& parameters, int64_t rows)
    : ctx_(ctx),
      spec_(spec),
      b_(b),
      back_(b.backward),
      parameters_(parameters),
      rows_(rows),
      gelu_(spec.tiles ? ops::Gelu::erf : ops::Gelu::tanh),
      g_PC_(matrix_of(b.backward.g, rows, spec.hidden_size)) {}

void BlocksBackward::normalise(const weights::VisionNorm& w, const at::Tensor& x, const at::Tensor& y,
                               const at::Tensor& rstd) const {
    if (spec_.rms_norm)
        ops::rms_norm_forward(ctx_, x, w.weight, spec_.norm_eps, y, rstd.narrow(0, 0, x.size(0)));
    else
        ops::layer_norm_forward(ctx_, x, w.weight, w.bias, spec_.norm_eps, y);
}

void BlocksBackward::normalise_backward(const weights::VisionNorm& w, const at::Tensor& dy, const at::Tensor& x,
                                        const at::Tensor& rstd, const at::Tensor& dx) const {
    if (spec_.rms_norm)
        ops::rms_norm_backward(ctx_, dy, x, w.weight, rstd.narrow(0, 0, x.size(0)), dx, {});
    else
        ops::layer_norm_backward(ctx_, dy, x, w.weight, spec_.norm_eps, dx);
}

void BlocksBackward::activate(const at::Tensor& x, ops::Gelu form, const at::Tensor& out) const {
    ops::copy_2d(ctx_, x, out);
    ops::gelu(ctx_, out, form);
}

void BlocksBackward::multiply(const weights::VisionLinear& w, const at::Tensor& x, const at::Tensor& out,
                              bool adds) const {
    model::multiply(ctx_, w, x, out, adds, b_.u);
}

at::Tensor BlocksBackward::adapter_backward(const weights::VisionAdapter& adapter, const at::Tensor& dy,
                                            const at::Tensor& x, const at::Tensor& da) const {
    const int64_t n = adapter.b_NR.size(0), r = adapter.a_RK.size(0), k = adapter.a_RK.size(1);
    const at::Tensor u_PR = adapter_values(ctx_, adapter, x, b_.u), v_PR = matrix_of(b_.v, x.size(0), r);
    const std::vector<ops::LoraSlice> slice = {{.n_begin = 0,
                                                .n = n,
                                                .r_begin = 0,
                                                .r = r,
                                                .rank = adapter.a->shape[0],
                                                .scale = adapter.scale,
                                                .da = da,
                                                .db = parameters_.gradient(*adapter.b)}};
    ops::lora_dy(ctx_, {.dy_TN = dy.narrow(1, adapter.n_begin, n),
                        .b_NR = adapter.b_NR,
                        .u_TR = u_PR,
                        .v_TR = v_PR,
                        .slices = slice,
                        .label = "lora dyB+dB tower",
                        .label_v = "lora dyB tower",
                        .label_db = "lora dB tower"});
    ops::lora_da(ctx_, {.v_TR = v_PR, .x_TK = x.narrow(1, 0, k), .slices = slice, .label = "lora dA tower"});
    return v_PR;
}

void BlocksBackward::multiply_backward(const weights::VisionLinear& w, const at::Tensor& dy, const at::Tensor& x,
                                       const at::Tensor& dx) const {
    if (dx.defined()) ops::gemm(ctx_, {.a = dy, .b = w.values(ctx_), .out = dx, .label = "gemm dx tower"});
    for (const weights::VisionAdapter& adapter : w.adapters) {
        const at::Tensor v_PR = adapter_backward(adapter, dy, x, parameters_.gradient(*adapter.a));
        if (dx.defined())
            ops::gemm(ctx_, {.a = v_PR,
                             .b = adapter.a_RK,
                             .out = dx.narrow(1, 0, adapter.a_RK.size(1)),
                             .beta = 1.0,
                             .label = "lora vA tower"});
    }
}

void BlocksBackward::rotate(const at::Tensor& qkv_PN, bool backward) const {
    if (spec_.tiles) return;
    const int64_t pairs = spec_.head_dim() / 2;
    ops::rope_apply(ctx_, heads_of(qkv_PN, 0, 2 * spec_.num_heads, spec_.head_dim()), rows(b_.cos, pairs),
                    rows(b_.sin, pairs), backward);
}

at::Tensor BlocksBackward::lse() const {
    return back_.lse.narrow(0, 0, spec_.num_heads * rows_).view({spec_.num_heads, rows_});
}

/// A block forward once more, up to its MLP's inner values, and back.
void BlocksBackward::block(const weights::VisionBlock& w, const at::Tensor& x_PC,
                           const std::vector<ops::AttentionRange>& ranges, bool lowest) const {
    const int64_t c = spec_.hidden_size, heads = spec_.num_heads, d = spec_.head_dim();
    const at::Tensor h_PC = rows(b_.h, c), qkv_PN = rows(back_.qkv, 3 * c), out_PC = rows(back_.out, c),
                     middle_PC = rows(back_.middle, c);
    normalise(w.norm1, x_PC, h_PC, back_.rstd1);
    multiply(w.qkv, h_PC, qkv_PN);
    rotate(qkv_PN, /*backward=*/false);
    const auto part = [&](const at::Tensor& of_PN, int64_t number) { return heads_of(of_PN, number * c, heads, d); };
    const ops::AttentionShape shape = tower_attention(spec_);
    ops::range_attention_forward(ctx_, shape, ranges, part(qkv_PN, 0), part(qkv_PN, 1), part(qkv_PN, 2),
                                 part(out_PC, 0), lse());
    ops::copy_2d(ctx_, x_PC, middle_PC);
    multiply(w.proj, out_PC, middle_PC, /*adds=*/true);
    mlp(w, middle_PC);
    const at::Tensor dout_PC = rows(back_.dh, c), dqkv_PN = rows(back_.dqkv, 3 * c);
    multiply_backward(w.proj, g_PC_, out_PC, dout_PC);
    ops::range_attention_backward(ctx_, shape, ranges, part(dout_PC, 0), part(qkv_PN, 0), part(qkv_PN, 1),
                                  part(qkv_PN, 2), part(out_PC, 0), lse(), part(dqkv_PN, 0), part(dqkv_PN, 1),
                                  part(dqkv_PN, 2));
    rotate(dqkv_PN, /*backward=*/true);
    if (lowest) return multiply_backward(w.qkv, dqkv_PN, h_PC, {});
    multiply_backward(w.qkv, dqkv_PN, h_PC, dout_PC);
    normalise_backward(w.norm1, dout_PC, x_PC, back_.rstd1, g_PC_);
}

/// A block's MLP, from what enters it; its part of the gradient is added.
void BlocksBackward::mlp(const weights::VisionBlock& w, const at::Tensor& x_PC) const {
    const int64_t c = spec_.hidden_size, f = spec_.inner_size();
    const at::Tensor h_PC = rows(back_.normed2, c), inner = rows(b_.wide, (spec_.gated_mlp ? 2 : 1) * f),
                     act_PF = rows(back_.act, f), dact_PF = rows(back_.dact, f), dh_PC = rows(back_.dh, c);
    normalise(w.norm2, x_PC, h_PC, b_.rstd);
    multiply(w.in, h_PC, inner);
    if (spec_.gated_mlp)
        ops::swiglu_forward(ctx_, inner, act_PF);
    else
        activate(inner, gelu_, act_PF);
    multiply_backward(w.out, g_PC_, act_PF, dact_PF);
    if (spec_.gated_mlp) {
        ops::swiglu_backward(ctx_, dact_PF, inner);
        multiply_backward(w.in, inner, h_PC, dh_PC);
    } else {
        ops::gelu_backward(ctx_, inner, gelu_, dact_PF);
        multiply_backward(w.in, dact_PF, h_PC, dh_PC);
    }
    normalise_backward(w.norm2, dh_PC, x_PC, b_.rstd, g_PC_);
}

}  // namespace unsloth::model
