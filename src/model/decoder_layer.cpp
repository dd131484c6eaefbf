// Legend: T tokens, D hidden, F intermediate, H heads, K kv heads, d head_dim, N = (H + 2K) d, R adapters' columns.
#include "unsloth/model/decoder_layer.h"

#include <cmath>

#include "model/cross_layer.h"
#include "model/delta_layer.h"
#include "model/layer_parts.h"
#include "model/mlp.h"
#include "model/normed_input.h"
#include "unsloth/ops/dora.h"
#include "unsloth/ops/gated_delta.h"
#include "unsloth/ops/norm.h"
#include "unsloth/ops/rope.h"
#include "unsloth/ops/rows.h"

namespace unsloth::model {
namespace {

/// The columns of q_proj: each head's query, and its gate next to it where attention's output has one.
int64_t query_columns(const spec::ModelSpec& spec) {
    return spec.out_features(spec::Projection::q);
}
at::Tensor query_heads(const spec::ModelSpec& spec, const at::Tensor& x_TN) {
    const int64_t of_head = query_columns(spec) / spec.num_heads;
    return heads_view(x_TN, 0, spec.num_heads, of_head).narrow(2, 0, spec.head_dim);
}
at::Tensor output_gates(const spec::ModelSpec& spec, const at::Tensor& x_TN) {
    return heads_view(x_TN, 0, spec.num_heads, 2 * spec.head_dim).narrow(2, spec.head_dim, spec.head_dim);
}

struct QkvViews {
    at::Tensor q_THd, k_TKd, v_TKd;
};

QkvViews qkv_views(const spec::ModelSpec& spec, const at::Tensor& qkv) {
    const int64_t d = spec.head_dim, q = query_columns(spec), kv = spec.kv_size();
    return {query_heads(spec, qkv), heads_view(qkv, q, spec.num_kv_heads, d),
            heads_view(qkv, q + kv, spec.num_kv_heads, d)};
}
/// Where no gates are between them.
at::Tensor query_and_key_heads(const spec::ModelSpec& spec, const at::Tensor& qkv) {
    return heads_view(qkv, 0, spec.num_heads + spec.num_kv_heads, spec.head_dim);
}

/// What rotates the layer's queries and keys; nullptr: nothing does.
const RopeTable* rope_of(const LayerContext& c) {
    const int rope = c.spec.layers[static_cast<std::size_t>(c.layer())].rope;
    return rope == spec::LayerSpec::no_rope ? nullptr : &c.tokens.ropes.at(static_cast<std::size_t>(rope));
}

/// Whether a rope turns whole heads, and queries as keys.
bool turns_alike(const spec::ModelSpec& spec, const RopeTable& rope) {
    return 2 * rope.cos_Tp.size(1) == spec.head_dim && !rope.query_cos_Tp.defined() && !spec.attention_output_gate;
}

/// Turns the queries' and keys' heads of rows, or their gradients back.
void rotate(const LayerContext& c, const RopeTable& rope, const at::Tensor& qkv_TN, bool backward) {
    const QkvViews v = qkv_views(c.spec, qkv_TN);
    const auto turn = [&](const at::Tensor& heads_THd, const at::Tensor& cos_Tp, const at::Tensor& sin_Tp) {
        ops::rope_apply(c.group.ctx, heads_THd.narrow(2, 0, 2 * cos_Tp.size(1)), cos_Tp, sin_Tp, backward);
    };
    const bool apart = rope.query_cos_Tp.defined();
    if (!apart && !c.spec.attention_output_gate)
        return turn(query_and_key_heads(c.spec, qkv_TN), rope.cos_Tp, rope.sin_Tp);
    turn(v.q_THd, apart ? rope.query_cos_Tp : rope.cos_Tp, apart ? rope.query_sin_Tp : rope.sin_Tp);
    turn(v.k_TKd, rope.cos_Tp, rope.sin_Tp);
}

/// Queries' and keys' heads as their norms take them: each head, or all of q or k as one.
struct NormedHeads {
    at::Tensor q, k;
};
/// `gates`: q's heads have theirs among them.
NormedHeads normed_heads(const spec::ModelSpec& spec, const at::Tensor& x_TN, bool gates) {
    const int64_t d = spec.head_dim, kv = spec.num_kv_heads;
    if (gates) return {query_heads(spec, x_TN), heads_view(x_TN, query_columns(spec), kv, d)};
    if (spec.qk_norm_of_all_heads)
        return {heads_view(x_TN, 0, 1, spec.q_size()), heads_view(x_TN, spec.q_size(), 1, spec.kv_size())};
    return {heads_view(x_TN, 0, spec.num_heads, d), heads_view(x_TN, spec.q_size(), kv, d)};
}

/// q_norm and k_norm, keeping what was before them.
void normalise_heads(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a) {
    const spec::ModelSpec& spec = c.spec;
    const NormedHeads raw = normed_heads(spec, a.qk_raw_TN, /*gates=*/false),
                      normed = normed_heads(spec, a.qkv_TN, spec.attention_output_gate);
    if (spec.attention_output_gate) {
        raw.q.copy_(normed.q);
        raw.k.copy_(normed.k);
    } else {
        ops::copy_2d(c.group.ctx, a.qkv_TN.narrow(1, 0, spec.q_size() + spec.kv_size()), a.qk_raw_TN);
    }
    ops::head_norm_forward(c.group.ctx, raw.q, w.norm(spec::TensorRole::q_norm), spec.rms_norm_eps, normed.q,
                           a.rstd_q_TH);
    ops::head_norm_forward(c.group.ctx, raw.k, w.norm(spec::TensorRole::k_norm), spec.rms_norm_eps, normed.k,
                           a.rstd_k_TK);
}

void normalise_heads_backward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a,
                              const at::Tensor& dqkv_TN) {
    const NormedHeads raw = normed_heads(c.spec, a.qk_raw_TN, /*gates=*/false),
                      gradient = normed_heads(c.spec, dqkv_TN, c.spec.attention_output_gate);
    const auto backward = [&](const at::Tensor& dx, const at::Tensor& x, spec::TensorRole role,
                              const at::Tensor& rstd) {
        ops::head_norm_backward(c.group.ctx, dx, x, w.norm(role), rstd, dx, norm_gradient(c, role));
    };
    backward(gradient.q, raw.q, spec::TensorRole::q_norm, a.rstd_q_TH);
    backward(gradient.k, raw.k, spec::TensorRole::k_norm, a.rstd_k_TK);
}

void count_mlp(PassCounts& counts, const spec::LayerSteps& steps) {
    counts.mid += steps.mid ? 1 : 0;
    counts.gate_up += steps.gate_up ? 1 : 0;
    counts.down += steps.down ? 1 : 0;
}

struct KeyViews {
    at::Tensor k_SKd, v_SKd;
};

/// Of a matrix whose rows are keys' and values' heads side by side.
KeyViews key_views(const spec::ModelSpec& spec, const at::Tensor& keys_KN) {
    return {heads_view(keys_KN, 0, spec.num_kv_heads, spec.head_dim),
            heads_view(keys_KN, spec.kv_size(), spec.num_kv_heads, spec.head_dim)};
}

/// The columns of keys and values.
at::Tensor keys_of(const spec::ModelSpec& spec, const at::Tensor& qkv_TN) {
    return qkv_TN.narrow(1, query_columns(spec), 2 * spec.kv_size());
}

/// Keys and values of all ranks that share the rows: [ranks x most tokens of one, ...].
at::Tensor all_keys(const LayerContext& c) {
    const int64_t columns = 2 * c.spec.kv_size();
    return c.scratch.all_keys.narrow(0, 0, c.tokens.all_keys * columns).view({c.tokens.all_keys, columns});
}

/// What the segments attend over: the tokens' own keys and values, or copies where they are not alone in having them.
KeyViews keys_to_attend(const LayerContext& c, const LayerSaved& a) {
    const at::Tensor index_K = c.tokens.key_tokens_K;
    return key_views(c.spec, index_K.defined() ? c.scratch.keys_KN.narrow(0, 0, index_K.numel())
                                               : keys_of(c.spec, attended(c, a.qkv_TN)));
}

void gather_keys(const LayerContext& c, const LayerSaved& a) {
    const at::Tensor index_K = c.tokens.key_tokens_K;
    if (!index_K.defined()) return;
    at::Tensor source = keys_of(c.spec, attended(c, a.qkv_TN));
    if (c.tokens.all_keys > 0) {
        const at::Tensor all_GN = all_keys(c);
        c.cp.gather(c.group.ctx, source, all_GN, "keys and values");
        source = all_GN;
    }
    ops::gather_rows(c.group.ctx, source, index_K, c.scratch.keys_KN.narrow(0, 0, index_K.numel()));
}

/// A key's gradient is a sum over those that saw it.
void return_key_gradients(const LayerContext& c, const at::Tensor& dkeys_KN, const at::Tensor& dqkv) {
    if (c.tokens.all_keys == 0)
        return ops::sum_rows(c.group.ctx, dkeys_KN, c.tokens.key_places_TP, keys_of(c.spec, dqkv));
    const at::Tensor all_GN = all_keys(c);
    ops::sum_rows(c.group.ctx, dkeys_KN, c.tokens.key_places_TP, all_GN);
    c.cp.sum_onto_owners(c.group.ctx, all_GN, keys_of(c.spec, attended(c, dqkv)), "gradients of keys and values");
}

void attend(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a, const at::Tensor& o_THd) {
    const int64_t heads = c.spec.num_heads;
    const at::Tensor sinks_H = c.spec.attention_sinks
                                   ? w.norm(spec::TensorRole::sinks).narrow(0, c.group.tp.place().rank * heads, heads)
                                   : at::Tensor();
    const QkvViews v = qkv_views(c.spec, attended(c, a.qkv_TN));
    const ops::AttentionShape shape = attention_shape(c.spec, c.layer());
    if (c.tokens.cached == nullptr) {
        gather_keys(c, a);
        const KeyViews keys = keys_to_attend(c, a);
        ops::attention_forward(c.group.ctx, shape, c.tokens.segments, v.q_THd, keys.k_SKd, keys.v_SKd, o_THd, a.lse,
                               sinks_H);
        return;
    }
    const DecodeBatch& rows = *c.tokens.cached;
    const ops::KvCache& cache = rows.caches->at(static_cast<std::size_t>(c.layer()));
    ops::write_kv(c.group.ctx, keys_of(c.spec, a.qkv_TN), rows.slots_T, c.spec.head_dim, cache);
    const int64_t first = rows.going_on.tokens(), begun = a.qkv_TN.size(0) - first;
    if (first > 0)
        ops::paged_attention(c.group.ctx, shape, rows.going_on, v.q_THd.narrow(0, 0, first), cache,
                             o_THd.narrow(0, 0, first), sinks_H);
    if (begun > 0)
        ops::attention_forward(c.group.ctx, shape, c.tokens.segments, v.q_THd.narrow(0, first, begun),
                               v.k_TKd.narrow(0, first, begun), v.v_TKd.narrow(0, first, begun),
                               o_THd.narrow(0, first, begun), {}, sinks_H);
}

void attend_backward(const LayerContext& c, const LayerSaved& a, const at::Tensor& do_THd, const at::Tensor& o_THd,
                     const QkvViews& grad) {
    const at::Tensor q_THd = qkv_views(c.spec, attended(c, a.qkv_TN)).q_THd, index_K = c.tokens.key_tokens_K;
    const KeyViews keys = keys_to_attend(c, a);
    KeyViews dkeys{grad.k_TKd, grad.v_TKd};
    at::Tensor dkeys_KN;
    if (index_K.defined()) {
        dkeys_KN = c.scratch.dkeys_KN.narrow(0, 0, index_K.numel());
        dkeys = key_views(c.spec, dkeys_KN);
    }
    ops::attention_backward(c.group.ctx, attention_shape(c.spec, c.layer()), c.tokens.segments, do_THd, q_THd,
                            keys.k_SKd, keys.v_SKd, o_THd, a.lse, grad.q_THd, dkeys.k_SKd, dkeys.v_SKd);
    if (index_K.defined()) return_key_gradients(c, dkeys_KN, c.scratch.dqkv_full);
}

}  // namespace

ops::AttentionShape attention_shape(const spec::ModelSpec& spec, int64_t layer) {
    return {spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            spec.layers.at(static_cast<std::size_t>(layer)).window,
            spec.score_scale.value_or(1.0 / std::sqrt(static_cast<double>(spec.head_dim))),
            spec.attention_sinks};
}

void layer_forward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a,
                   const at::Tensor& x_next_tD, spec::LayerSteps steps) {
    const spec::ModelSpec& spec = c.spec;
    if (spec.crosses(c.layer()) || spec.has_delta(c.layer())) {
        (spec.crosses(c.layer()) ? cross_forward : delta_forward)(c, w, a, steps);
        steps.qkv = steps.attention = false;
    }
    if (steps.qkv) {
        ++c.counts.qkv;
        // 1 norm
        const Activation h = make_mixer_input(c, Group::qkv, w, a);
        // 2 q, k, v
        linear_forward(c.group, Group::qkv, w[Group::qkv], h, {.y_TN = a.qkv_TN, .z_TN = a.z_qkv_TN});
        observe_group(c, Group::qkv, a.qkv_TN);
        if (spec.qk_norm) normalise_heads(c, w, a);
        // 3 rotary embedding
        if (const RopeTable* const rope = rope_of(c)) rotate(c, *rope, a.qkv_TN, /*backward=*/false);
    }
    if (steps.attention) {
        ++c.counts.attention;
        // 4 attention
        const auto heads = [&](const at::Tensor& x_TN) { return heads_view(x_TN, 0, spec.num_heads, spec.head_dim); };
        attend(c, w, a, heads(attended(c, spec.attention_output_gate ? a.ungated_TN : a.o_full)));
        if (spec.attention_output_gate)
            ops::sigmoid_gate_forward(c.group.ctx, heads(a.ungated_TN), output_gates(spec, a.qkv_TN), heads(a.o_full));
        zero_added(c, a.o_full);
        fill_adapter_columns(c.group, Group::o, w[Group::o], {a.o_full}, {});
    }
    // 5 output projection, 6 norm, 7 gate and up, 8 activation, 9 down: some rows at a time
    count_mlp(c.counts, steps);
    if (!steps.mid && !steps.gate_up && !steps.down) return;
    each_tile(c, a, [&](const LayerContext& some, const LayerSaved& rows, const RowRange& range) {
        mlp_forward(some, w, rows, steps.down ? range.slice(c.group.tp).of(x_next_tD) : at::Tensor(), steps);
    });
}

void layer_backward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a, spec::Keep keep,
                    bool input_gradient) {
    ops::Context& ctx = c.group.ctx;
    const weights::LayerLayout& layout = c.group.layout;
    const spec::ModelSpec& spec = c.spec;

    const spec::LayerSteps again = spec::recompute_of(keep);
    layer_forward(c, w, a, {}, {again.qkv, again.attention, false, false, false});
    // 9 down, 8 activation, 7 gate and up, 6 norm, 5 output projection: of each tile what was not kept first
    count_mlp(c.counts, again);
    each_tile(c, a, [&](const LayerContext& some, const LayerSaved& rows, const RowRange&) {
        mlp_forward(some, w, rows, {}, again);
        mlp_backward(some, w, rows);
    });
    if (spec.crosses(c.layer())) return cross_backward(c, w, a, input_gradient);
    if (spec.has_delta(c.layer())) return delta_backward(c, w, a, input_gradient);
    // 4 attention
    const at::Tensor o_TN = (spec.attention_output_gate ? a.ungated_TN : a.o_full).narrow(1, 0, spec.q_size()),
                     do_TN = c.scratch.h_full.narrow(1, 0, spec.q_size());
    if (spec.attention_output_gate) {
        const at::Tensor do_THd = heads_view(do_TN, 0, spec.num_heads, spec.head_dim);
        ops::sigmoid_gate_backward(ctx, do_THd, heads_view(o_TN, 0, spec.num_heads, spec.head_dim),
                                   output_gates(spec, a.qkv_TN), do_THd, output_gates(spec, c.scratch.dqkv_full));
    }
    if (!again.attention) gather_keys(c, a);  // else they are those of its recomputation
    attend_backward(c, a, heads_view(attended(c, do_TN), 0, spec.num_heads, spec.head_dim),
                    heads_view(attended(c, o_TN), 0, spec.num_heads, spec.head_dim),
                    qkv_views(spec, attended(c, c.scratch.dqkv_full)));
    zero_added(c, c.scratch.dqkv_full);
    // 3 rotary embedding
    const at::Tensor dqkv_TN = c.scratch.dqkv_full.narrow(1, 0, layout[Group::qkv].n);
    Activation dqkv = input_gradient ? gradient_of(c, Group::qkv, w, c.scratch.dqkv_full, a.u_qkv_TR)
                                     : Activation{c.scratch.dqkv_full};
    const RopeTable* const rope = rope_of(c);
    const bool alike = rope != nullptr && turns_alike(spec, *rope);
    const bool rope_is_last = alike && !spec.qk_norm;  // it makes the codes together with the rows
    dqkv.codes_alone = dqkv.codes_alone && rope_is_last;
    if (alike)
        ops::rope_apply_rows(ctx, dqkv_TN, spec.num_heads + spec.num_kv_heads, rope->cos_Tp, rope->sin_Tp,
                             /*backward=*/true, rope_is_last ? dqkv.codes : ops::CodedMatrix{}, dqkv.codes_alone);
    else if (rope != nullptr)
        rotate(c, *rope, dqkv_TN, /*backward=*/true);
    if (spec.qk_norm) normalise_heads_backward(c, w, a, dqkv_TN);
    if (!rope_is_last) ops::quantize_rows(ctx, dqkv_TN, dqkv.codes);
    // 2 q, k, v
    if (scales_outputs(c.group))
        ops::dora_backward(ctx, dqkv_TN, a.z_qkv_TN, w[Group::qkv].scale, dqkv_TN,
                           magnitude_gradients(c.group, Group::qkv));
    input_backward(c.group, Group::qkv, w[Group::qkv], dqkv, a.u_qkv_TR,
                   input_gradient ? c.scratch.h_full.narrow(1, 0, spec.hidden_size) : at::Tensor());
    // 1 norm, onto the residual stream's gradient
    mixer_input_backward(c, w, a, input_gradient);
}

}  // namespace unsloth::model
