// Legend: T tokens, S image features, D hidden, H heads, K kv heads, d head_dim, N = 2 K d, R adapters' columns.
#include "model/cross_layer.h"

#include "model/layer_parts.h"
#include "model/normed_input.h"
#include "unsloth/model/tile_tower.h"
#include "unsloth/ops/norm.h"
#include "unsloth/ops/range_attention.h"

namespace unsloth::model {
namespace {

at::Tensor query_heads(const LayerContext& c, const at::Tensor& x_TN) {
    return heads_view(x_TN, 0, c.spec.num_heads, c.spec.head_dim);
}
at::Tensor key_heads(const LayerContext& c, const at::Tensor& x_SN) {
    return heads_view(x_SN, 0, c.spec.num_kv_heads, c.spec.head_dim);
}
at::Tensor value_heads(const LayerContext& c, const at::Tensor& x_SN) {
    return heads_view(x_SN, c.spec.kv_size(), c.spec.num_kv_heads, c.spec.head_dim);
}

/// Of buffers for the most features those at hand.
at::Tensor seen(const LayerContext& c, const at::Tensor& x_SN) {
    return x_SN.narrow(0, 0, c.tokens.sight->rows);
}
at::Tensor lse_of(const LayerContext& c, const LayerSaved& a) {
    const int64_t heads = c.spec.num_heads, tokens = a.o_full.size(0);
    return a.lse.narrow(0, 0, heads * tokens).view({heads, tokens});
}

/// The products of features: dropout draws a mask for each of them.
GroupContext of_features(const LayerContext& c) {
    GroupContext group = c.group;
    group.row_T = c.tokens.feature_row_S;
    group.offset_T = c.tokens.feature_offset_S;
    group.adapter_T = c.tokens.feature_adapter_S;
    return group;
}

/// The features and their adapters' columns, which are the layer's own from here on.
Activation features_of(const LayerContext& c, const weights::LayerWeights& w, const GroupContext& group,
                       const at::Tensor& features_full) {
    const Activation features{features_full.narrow(1, 0, c.group.layout[Group::cross_kv].inputs())};
    fill_adapter_columns(group, Group::cross_kv, w[Group::cross_kv], features, {});
    return features;
}

void make_gate(const at::Tensor& stored, const at::Tensor& tokens_T, const at::Tensor& gate_T) {
    gate_T.copy_(stored).tanh_().mul_(tokens_T);
}

void make_queries(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a) {
    const int64_t columns = c.spec.hidden_size + c.group.layout[Group::cross_q].r;
    const Activation h = input_of(c, Group::cross_q, w, c.scratch.h_full.narrow(1, 0, columns), a.u_qkv_TR);
    make_input(c, input_norm(c, w, a), w[Group::cross_q], h);
    linear_forward(c.group, Group::cross_q, w[Group::cross_q], h, {.y_TN = a.qk_raw_TN});
    observe_group(c, Group::cross_q, a.qk_raw_TN);
    ops::head_norm_forward(c.group.ctx, query_heads(c, a.qk_raw_TN), w.norm(spec::TensorRole::q_norm),
                           c.spec.rms_norm_eps, query_heads(c, a.qkv_TN), a.rstd_q_TH);
}

/// Of rows [first, first + rows) of the features.
void make_keys_of(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a, int64_t first,
                  int64_t rows) {
    const auto part = [&](const at::Tensor& x) { return x.defined() ? x.narrow(0, first, rows) : x; };
    GroupContext group = of_features(c);
    for (at::Tensor* const of_rows : {&group.row_T, &group.offset_T, &group.adapter_T}) *of_rows = part(*of_rows);
    const at::Tensor kv_SN = part(a.cross.kv_SN), k_raw_SN = part(a.cross.k_raw_SN);
    linear_forward(group, Group::cross_kv, w[Group::cross_kv], features_of(c, w, group, part(c.tokens.features_full)),
                   {.y_TN = kv_SN});
    observe_group(c, Group::cross_kv, kv_SN);
    ops::copy_2d(c.group.ctx, kv_SN.narrow(1, 0, c.spec.kv_size()), k_raw_SN);
    ops::head_norm_forward(c.group.ctx, key_heads(c, k_raw_SN), w.norm(spec::TensorRole::k_norm), c.spec.rms_norm_eps,
                           key_heads(c, kv_SN), part(a.cross.rstd_k_SK));
}

/// In generation those of a prompt by themselves: they are the same bits in whatever pass they are made.
void make_keys(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a) {
    if (c.tokens.cached == nullptr) return make_keys_of(c, w, a, 0, c.tokens.sight->rows);
    for (const SegmentFeatures& segment : c.tokens.sight->segments) make_keys_of(c, w, a, segment.first, segment.rows);
}

/// Whether a layer above this one has written the features' gradient already.
bool is_below_another(const LayerContext& c) {
    for (int64_t layer = c.layer() + 1; layer < c.spec.num_layers; ++layer)
        if (c.spec.crosses(layer)) return true;
    return false;
}

/// Adapters of keys and values. Their input is the features: its gradient is read where the tower is trained.
void keys_backward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a,
                   const at::Tensor& dkv_full) {
    const weights::MatrixGroup& layout = c.group.layout[Group::cross_kv];
    const at::Tensor& dfeatures_SD = c.tokens.dfeatures_SD;
    if (!adapted(c.group, Group::cross_kv) && !dfeatures_SD.defined()) return;
    const at::Tensor dk = key_heads(c, dkv_full);
    ops::head_norm_backward(c.group.ctx, dk, key_heads(c, seen(c, a.cross.k_raw_SN)), w.norm(spec::TensorRole::k_norm),
                            seen(c, a.cross.rstd_k_SK), dk, norm_gradient(c, spec::TensorRole::k_norm));
    const Activation features =
        features_of(c, w, of_features(c), c.tokens.features_full);  // another layer's columns may be there
    input_backward(c.group, Group::cross_kv, w[Group::cross_kv], {dkv_full},
                   features.full.narrow(1, layout.k, layout.r), dfeatures_SD, is_below_another(c));
    adapter_backward(of_features(c), Group::cross_kv, dkv_full.narrow(1, layout.n, layout.r),
                     features.full.narrow(1, 0, layout.k));
}

}  // namespace

void cross_forward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a,
                   const spec::LayerSteps& steps) {
    make_gate(w.norm(spec::TensorRole::attention_gate), c.tokens.attends_T, c.scratch.attention_gate_T);
    make_gate(w.norm(spec::TensorRole::mlp_gate), c.tokens.adds_T, c.scratch.mlp_gate_T);
    if (steps.qkv) {
        ++c.counts.qkv;
        make_queries(c, w, a);
        make_keys(c, w, a);
    }
    if (!steps.attention) return;
    ++c.counts.attention;
    const at::Tensor kv_SN = seen(c, a.cross.kv_SN);
    ops::range_attention_forward(c.group.ctx, attention_shape(c.spec, c.layer()), c.tokens.sight->ranges,
                                 query_heads(c, a.qkv_TN), key_heads(c, kv_SN), value_heads(c, kv_SN),
                                 query_heads(c, a.o_full), lse_of(c, a));
    fill_adapter_columns(c.group, Group::o, w[Group::o], {a.o_full}, {});
}

void cross_backward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a, bool input_gradient) {
    ops::Context& ctx = c.group.ctx;
    const weights::MatrixGroup& layout = c.group.layout[Group::cross_q];
    const at::Tensor kv_SN = seen(c, a.cross.kv_SN), dkv_full = seen(c, c.scratch.dkv_full);
    const at::Tensor dq_TN = c.scratch.dqkv_full.narrow(1, 0, layout.n), dq = query_heads(c, dq_TN);
    ops::range_attention_backward(ctx, attention_shape(c.spec, c.layer()), c.tokens.sight->ranges,
                                  query_heads(c, c.scratch.h_full), query_heads(c, a.qkv_TN), key_heads(c, kv_SN),
                                  value_heads(c, kv_SN), query_heads(c, a.o_full), lse_of(c, a), dq,
                                  key_heads(c, dkv_full), value_heads(c, dkv_full));
    keys_backward(c, w, a, dkv_full);
    ops::head_norm_backward(ctx, dq, query_heads(c, a.qk_raw_TN), w.norm(spec::TensorRole::q_norm), a.rstd_q_TH, dq,
                            norm_gradient(c, spec::TensorRole::q_norm));
    const Activation gradient{c.scratch.dqkv_full.narrow(1, 0, layout.n + layout.r)};
    input_backward(c.group, Group::cross_q, w[Group::cross_q], gradient, a.u_qkv_TR,
                   input_gradient ? c.scratch.h_full.narrow(1, 0, c.spec.hidden_size) : at::Tensor());
    input_norm_backward(c, input_norm(c, w, a), c.scratch.dqkv_full, input_gradient);
}

}  // namespace unsloth::model
