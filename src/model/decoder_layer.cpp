// Legend: T tokens, D hidden, F intermediate, H heads, K kv heads, d head_dim, N = (H + 2K) d, R adapters' columns.
#include "unsloth/model/decoder_layer.h"

#include <cmath>

#include "unsloth/core/error.h"
#include "unsloth/ops/dora.h"
#include "unsloth/ops/fp8.h"
#include "unsloth/ops/norm.h"
#include "unsloth/ops/rope.h"
#include "unsloth/ops/rows.h"
#include "unsloth/ops/swiglu.h"

namespace unsloth::model {
namespace {

/// Columns [begin, begin + heads * d) of a row-strided matrix as [T, heads, d].
at::Tensor heads_view(const at::Tensor& x_TN, int64_t begin, int64_t heads, int64_t d) {
    const at::Tensor part = x_TN.narrow(1, begin, heads * d);
    return part.as_strided({part.size(0), heads, d}, {part.stride(0), d, 1}, part.storage_offset());
}

struct QkvViews {
    at::Tensor q_THd, k_TKd, v_TKd, qk_THd;  ///< the last: q and k heads side by side
};

QkvViews qkv_views(const spec::ModelSpec& spec, const at::Tensor& qkv) {
    const int64_t d = spec.head_dim, q = spec.q_size(), kv = spec.kv_size();
    return {heads_view(qkv, 0, spec.num_heads, d), heads_view(qkv, q, spec.num_kv_heads, d),
            heads_view(qkv, q + kv, spec.num_kv_heads, d), heads_view(qkv, 0, spec.num_heads + spec.num_kv_heads, d)};
}

void observe(const LayerContext& c, const char* module, const at::Tensor& output) {
    if (c.group.observer != nullptr) (*c.group.observer)(cat("model.layers.", c.layer(), ".", module), output);
}

void observe_group(const LayerContext& c, Group g, const at::Tensor& y_TN) {
    if (c.group.observer == nullptr) return;
    for (const weights::Slice& slice : c.group.layout[g].slices)
        observe(c, std::string(spec::path_of(slice.projection)).c_str(), y_TN.narrow(1, slice.n_begin, slice.n));
}

/// Nothing is reported outside of a training run: scoring and generation have no step outcome.
ops::Site forward_site(const LayerContext& c, int norm) {
    if (c.group.ctx.outcome == nullptr) return {};
    return {static_cast<uint32_t>(2 * c.layer() + norm)};
}
ops::Site backward_site(const LayerContext& c, int norm) {
    const auto layers = static_cast<uint32_t>(c.spec.num_layers), layer = static_cast<uint32_t>(c.layer());
    return {2 * layers + 2 + 2 * (layers - 1 - layer) + (norm == 1 ? 0U : 1U)};
}

/// Where codes of x go that these products read beside it, or instead; empty where they read x as it is. All lie in one
/// scratch buffer: those of one product are dead when the next are made.
ops::Fp8Matrix codes_of(const LayerContext& c, const weights::Operand& w, const at::Tensor& x_TC) {
    return w.codes(c.scratch.codes, x_TC.size(0), x_TC.size(1));
}

/// The same for an x whose maker makes no codes.
ops::Fp8Matrix encoded(const LayerContext& c, const weights::Operand& w, const at::Tensor& x_TC) {
    const ops::Fp8Matrix codes = codes_of(c, w, x_TC);
    ops::quantize_rows_fp8(c.group.ctx, x_TC, codes);
    return codes;
}

/// The gradient buffer of a trained norm; undefined when it is frozen, or another rank's to add to: that of the
/// residual stream is the same on all, those of q and k are sums over their heads.
at::Tensor norm_gradient(const LayerContext& c, spec::TensorRole role) {
    const bool of_heads = role == spec::TensorRole::q_norm || role == spec::TensorRole::k_norm;
    if (!c.group.trains_base || (!of_heads && !c.group.tp.first())) return {};
    const weights::Parameter* p =
        c.group.parameters->table().find(role, c.layer(), spec::Projection::q, weights::Parameter::Kind::base);
    return c.group.parameters->gradient(*p);
}

/// q_norm and k_norm (Qwen3), keeping what was before them.
void normalise_heads(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a) {
    const spec::ModelSpec& spec = c.spec;
    ops::copy_2d(c.group.ctx, a.qkv_TN.narrow(1, 0, spec.q_size() + spec.kv_size()), a.qk_raw_TN);
    const QkvViews out = qkv_views(spec, a.qkv_TN);
    const at::Tensor raw_q = heads_view(a.qk_raw_TN, 0, spec.num_heads, spec.head_dim);
    const at::Tensor raw_k = heads_view(a.qk_raw_TN, spec.q_size(), spec.num_kv_heads, spec.head_dim);
    ops::head_norm_forward(c.group.ctx, raw_q, w.q_norm_d, spec.rms_norm_eps, out.q_THd, a.rstd_q_TH);
    ops::head_norm_forward(c.group.ctx, raw_k, w.k_norm_d, spec.rms_norm_eps, out.k_TKd, a.rstd_k_TK);
}

void normalise_heads_backward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a,
                              const QkvViews& grad) {
    const spec::ModelSpec& spec = c.spec;
    const at::Tensor raw_q = heads_view(a.qk_raw_TN, 0, spec.num_heads, spec.head_dim);
    const at::Tensor raw_k = heads_view(a.qk_raw_TN, spec.q_size(), spec.num_kv_heads, spec.head_dim);
    ops::head_norm_backward(c.group.ctx, grad.q_THd, raw_q, w.q_norm_d, a.rstd_q_TH, grad.q_THd,
                            norm_gradient(c, spec::TensorRole::q_norm));
    ops::head_norm_backward(c.group.ctx, grad.k_TKd, raw_k, w.k_norm_d, a.rstd_k_TK, grad.k_TKd,
                            norm_gradient(c, spec::TensorRole::k_norm));
}

/// The gradient of a product that is added onto the residual stream, with its R columns: the stream's own, or what
/// DoRA's scale leaves of it, elsewhere, because the stream's goes on.
at::Tensor product_gradient(const LayerContext& c, Group g, const weights::Operand& w, const at::Tensor& z_TD) {
    const int64_t hidden = c.spec.hidden_size, columns = hidden + c.group.layout[g].r;
    const at::Tensor g_full = c.scratch.g_full.narrow(1, 0, columns);
    if (!scales_outputs(c.group)) return g_full;
    const at::Tensor dz_full = c.scratch.dz_full.narrow(1, 0, columns);
    ops::dora_backward(c.group.ctx, g_full.narrow(1, 0, hidden), z_TD, w.scale, dz_full.narrow(1, 0, hidden),
                       magnitude_gradients(c.group, g));
    return dz_full;
}

void attend(const LayerContext& c, const LayerSaved& a, const at::Tensor& o_THd) {
    const QkvViews v = qkv_views(c.spec, a.qkv_TN);
    const ops::AttentionShape shape = attention_shape(c.spec, c.layer());
    if (c.tokens.cached == nullptr) {
        ops::attention_forward(c.group.ctx, shape, c.tokens.segments, v.q_THd, v.k_TKd, v.v_TKd, o_THd, a.lse);
        return;
    }
    const CachedRows& rows = *c.tokens.cached;
    const KvCache& cache = rows.caches->at(static_cast<std::size_t>(c.layer()));
    const int64_t q = c.spec.q_size(), kv = c.spec.kv_size();
    ops::scatter_rows(c.group.ctx, a.qkv_TN.narrow(1, q, 2 * kv), rows.slots_T, cache.kv_C2N);
    const int64_t first = rows.going_on.tokens(), begun = a.qkv_TN.size(0) - first;
    if (first > 0)
        ops::paged_attention(c.group.ctx, shape, rows.going_on, v.q_THd.narrow(0, 0, first), cache.k_CN(), cache.v_CN(),
                             o_THd.narrow(0, 0, first));
    if (begun > 0)
        ops::attention_forward(c.group.ctx, shape, c.tokens.segments, v.q_THd.narrow(0, first, begun),
                               v.k_TKd.narrow(0, first, begun), v.v_TKd.narrow(0, first, begun),
                               o_THd.narrow(0, first, begun), {});
}

}  // namespace

ops::AttentionShape attention_shape(const spec::ModelSpec& spec, int64_t layer) {
    const int64_t window = spec.sliding_window.empty() ? 0 : spec.sliding_window[static_cast<std::size_t>(layer)];
    return {spec.num_heads, spec.num_kv_heads, spec.head_dim, window,
            1.0 / std::sqrt(static_cast<double>(spec.head_dim))};
}

void layer_forward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a,
                   const at::Tensor& x_next_TD, spec::LayerSteps steps) {
    ops::Context& ctx = c.group.ctx;
    const weights::LayerLayout& layout = c.group.layout;
    const spec::ModelSpec& spec = c.spec;
    const int64_t hidden = spec.hidden_size;
    const at::Tensor h_TD = c.scratch.h_full.narrow(1, 0, hidden);

    if (steps.qkv) {
        ++c.counts.qkv;
        // 1 norm
        const ops::Fp8Matrix h_codes = codes_of(c, w[Group::qkv], h_TD);
        ops::rms_norm_forward(ctx, a.x_TD, w.input_norm_D, spec.rms_norm_eps, h_TD, a.rstd1_T, forward_site(c, 0),
                              h_codes);
        observe(c, "input_layernorm", h_TD);
        // 2 q, k, v
        const at::Tensor h_qkv = c.scratch.h_full.narrow(1, 0, hidden + layout[Group::qkv].r);
        fill_adapter_columns(c.group, Group::qkv, w[Group::qkv], h_qkv, a.u_qkv_TR);
        linear_forward(c.group, Group::qkv, w[Group::qkv], h_qkv, h_codes, {.y_TN = a.qkv_TN, .z_TN = a.z_qkv_TN});
        observe_group(c, Group::qkv, a.qkv_TN);
        if (spec.qk_norm) normalise_heads(c, w, a);
        // 3 rotary embedding
        ops::rope_apply(ctx, qkv_views(spec, a.qkv_TN).qk_THd, c.tokens.cos_Tp, c.tokens.sin_Tp, /*backward=*/false);
    }
    if (steps.attention) {
        ++c.counts.attention;
        // 4 attention
        attend(c, a, heads_view(a.o_full, 0, spec.num_heads, spec.head_dim));
        fill_adapter_columns(c.group, Group::o, w[Group::o], a.o_full, {});
    }
    if (steps.mid) {
        ++c.counts.mid;
        // 5 output projection, onto the residual stream
        const ops::Fp8Matrix o_codes = encoded(c, w[Group::o], a.o_full.narrow(1, 0, spec.q_size()));
        linear_forward(c.group, Group::o, w[Group::o], a.o_full, o_codes,
                       {.y_TN = a.mid_TD, .residual_TN = a.x_TD, .z_TN = a.z_o_TD});
    }
    if (steps.gate_up) {
        ++c.counts.gate_up;
        // 6 norm
        const ops::Fp8Matrix h_codes = codes_of(c, w[Group::gate_up], h_TD);
        ops::rms_norm_forward(ctx, a.mid_TD, w.post_norm_D, spec.rms_norm_eps, h_TD, a.rstd2_T, forward_site(c, 1),
                              h_codes);
        observe(c, "post_attention_layernorm", h_TD);
        // 7 gate and up
        const at::Tensor h_gate_up = c.scratch.h_full.narrow(1, 0, hidden + layout[Group::gate_up].r);
        const at::Tensor gate_up_T2F = a.gate_up_full.narrow(1, 0, 2 * spec.intermediate_size);
        fill_adapter_columns(c.group, Group::gate_up, w[Group::gate_up], h_gate_up, a.u_gate_up_TR);
        linear_forward(c.group, Group::gate_up, w[Group::gate_up], h_gate_up, h_codes,
                       {.y_TN = gate_up_T2F, .z_TN = gate_up_T2F});  // DoRA's scale is the activation's to apply
        observe_group(c, Group::gate_up, gate_up_T2F);
    }
    if (steps.down) {
        ++c.counts.down;
        // 8 activation
        const at::Tensor gate_up_T2F = a.gate_up_full.narrow(1, 0, 2 * spec.intermediate_size);
        const at::Tensor act_TF = c.scratch.act_full.narrow(1, 0, spec.intermediate_size);
        const ops::Fp8Matrix act_codes = codes_of(c, w[Group::down], act_TF);
        if (scales_outputs(c.group)) {
            ops::dora_swiglu_forward(ctx, gate_up_T2F, w[Group::gate_up].scale, act_TF);
        } else {
            ops::swiglu_forward(ctx, gate_up_T2F, act_TF, act_codes);
        }
        // 9 down, onto the residual stream
        fill_adapter_columns(c.group, Group::down, w[Group::down], c.scratch.act_full, a.u_down_TR);
        linear_forward(c.group, Group::down, w[Group::down], c.scratch.act_full, act_codes,
                       {.y_TN = x_next_TD, .residual_TN = a.mid_TD, .z_TN = a.z_down_TD});
    }
}

void layer_backward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a, spec::Keep keep,
                    bool input_gradient) {
    ops::Context& ctx = c.group.ctx;
    const weights::LayerLayout& layout = c.group.layout;
    const spec::ModelSpec& spec = c.spec;
    const int64_t hidden = spec.hidden_size;
    // No adapter columns stand beside h here: its rows have no gaps, as sums over ranks want them.
    const at::Tensor h_TD = c.scratch.h_full.as_strided({a.x_TD.size(0), hidden}, {hidden, 1}),
                     g_TD = c.scratch.g_full.narrow(1, 0, hidden);
    const at::Tensor act_TF = c.scratch.act_full.narrow(1, 0, spec.intermediate_size);
    const at::Tensor gate_up_T2F = a.gate_up_full.narrow(1, 0, 2 * spec.intermediate_size);

    layer_forward(c, w, a, {}, spec::recompute_of(keep));
    // 9 down: dact lies where the activation will be made again
    const at::Tensor g_down = product_gradient(c, Group::down, w[Group::down], a.z_down_TD);
    input_backward(c.group, Group::down, w[Group::down], g_down, encoded(c, w[Group::down], g_TD), a.u_down_TR, act_TF);
    // 8 activation: gate and up become their gradients
    const ops::Fp8Matrix dgate_up_codes = codes_of(c, w[Group::gate_up], gate_up_T2F);
    if (scales_outputs(c.group)) {
        ops::dora_swiglu_backward(ctx, act_TF, gate_up_T2F, w[Group::gate_up].scale, act_TF,
                                  magnitude_gradients(c.group, Group::gate_up));
    } else {
        ops::swiglu_backward(ctx, act_TF, gate_up_T2F, act_TF, dgate_up_codes);
    }
    weight_backward(c.group, Group::down, g_down, act_TF);
    // 7 gate and up
    input_backward(c.group, Group::gate_up, w[Group::gate_up], a.gate_up_full, dgate_up_codes, a.u_gate_up_TR, h_TD);
    // 6 norm, onto the residual stream's gradient
    ops::rms_norm_backward(ctx, h_TD, a.mid_TD, w.post_norm_D, a.rstd2_T, g_TD,
                           norm_gradient(c, spec::TensorRole::post_norm), backward_site(c, 1), /*y_TD=*/h_TD);
    weight_backward(c.group, Group::gate_up, a.gate_up_full, h_TD);
    // 5 output projection
    const at::Tensor g_o = product_gradient(c, Group::o, w[Group::o], a.z_o_TD);
    const at::Tensor o_TN = a.o_full.narrow(1, 0, spec.q_size()),
                     u_o = a.o_full.narrow(1, spec.q_size(), layout[Group::o].r);
    const at::Tensor do_TN = c.scratch.h_full.narrow(1, 0, spec.q_size());
    input_backward(c.group, Group::o, w[Group::o], g_o, encoded(c, w[Group::o], g_TD), u_o, do_TN);
    weight_backward(c.group, Group::o, g_o, o_TN);
    // 4 attention
    const QkvViews v = qkv_views(spec, a.qkv_TN), grad = qkv_views(spec, c.scratch.dqkv_full);
    ops::attention_backward(ctx, attention_shape(spec, c.layer()), c.tokens.segments,
                            heads_view(do_TN, 0, spec.num_heads, spec.head_dim), v.q_THd, v.k_TKd, v.v_TKd,
                            heads_view(o_TN, 0, spec.num_heads, spec.head_dim), a.lse, grad.q_THd, grad.k_TKd,
                            grad.v_TKd);
    // 3 rotary embedding
    const at::Tensor dqkv_TN = c.scratch.dqkv_full.narrow(1, 0, layout[Group::qkv].n);
    const ops::Fp8Matrix dqkv_codes = input_gradient ? codes_of(c, w[Group::qkv], dqkv_TN) : ops::Fp8Matrix{};
    ops::rope_apply_rows(ctx, dqkv_TN, spec.num_heads + spec.num_kv_heads, c.tokens.cos_Tp, c.tokens.sin_Tp,
                         /*backward=*/true, spec.qk_norm ? ops::Fp8Matrix{} : dqkv_codes);
    if (spec.qk_norm) {
        normalise_heads_backward(c, w, a, grad);
        ops::quantize_rows_fp8(ctx, dqkv_TN, dqkv_codes);
    }
    // 2 q, k, v
    if (scales_outputs(c.group))
        ops::dora_backward(ctx, dqkv_TN, a.z_qkv_TN, w[Group::qkv].scale, dqkv_TN,
                           magnitude_gradients(c.group, Group::qkv));
    input_backward(c.group, Group::qkv, w[Group::qkv], c.scratch.dqkv_full, dqkv_codes, a.u_qkv_TR,
                   input_gradient ? h_TD : at::Tensor());
    // 1 norm, onto the residual stream's gradient
    if (input_gradient) {
        ops::rms_norm_backward(ctx, h_TD, a.x_TD, w.input_norm_D, a.rstd1_T, g_TD,
                               norm_gradient(c, spec::TensorRole::input_norm), backward_site(c, 0), /*y_TD=*/h_TD);
    } else {
        ops::rms_norm_forward(ctx, a.x_TD, w.input_norm_D, spec.rms_norm_eps, h_TD, a.rstd1_T);
    }
    weight_backward(c.group, Group::qkv, c.scratch.dqkv_full, h_TD);
}

}  // namespace unsloth::model
