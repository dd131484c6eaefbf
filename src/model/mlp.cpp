// Legend as in decoder_layer.cpp.
#include "model/mlp.h"

#include "model/branch.h"
#include "model/layer_parts.h"
#include "model/moe.h"
#include "model/normed_input.h"
#include "unsloth/ops/swiglu.h"

namespace unsloth::model {

LayerSaved rows_of(const LayerSaved& saved, const RowRange& range, const RowRange& own) {
    LayerSaved some;
    some.x_tD = own.of(saved.x_tD);
    some.rstd1_t = own.of(saved.rstd1_t);
    some.u_qkv_TR = range.of(saved.u_qkv_TR);
    some.o_full = range.of(saved.o_full);
    some.mid_tD = own.of(saved.mid_tD);
    some.rstd2_t = own.of(saved.rstd2_t);
    some.u_gate_up_TR = range.of(saved.u_gate_up_TR);
    some.gate_up_full = range.of(saved.gate_up_full);
    some.u_down_TR = range.of(saved.u_down_TR);
    some.branch_o_tD = own.of(saved.branch_o_tD);
    some.branch_down_tD = own.of(saved.branch_down_tD);
    some.rstd_o_t = own.of(saved.rstd_o_t);
    some.rstd_down_t = own.of(saved.rstd_down_t);
    some.z_o_tD = own.of(saved.z_o_tD);
    some.z_down_tD = own.of(saved.z_down_tD);
    return some;
}

Scratch rows_of(const Scratch& scratch, const RowRange& range, const RowRange& own) {
    Scratch some;
    some.h_full = range.of(scratch.h_full);
    some.act_full = range.of(scratch.act_full);
    some.g_full = own.of(scratch.g_full);
    some.dz_full = range.of(scratch.dz_full);
    some.dqkv_full = range.of(scratch.dqkv_full);
    some.codes = scratch.codes;
    some.attention_gate_T = range.of(scratch.attention_gate_T);
    some.mlp_gate_T = range.of(scratch.mlp_gate_T);
    return some;
}

GroupContext rows_of(const GroupContext& group, const RowRange& range) {
    GroupContext some = group;
    some.row_T = range.of(group.row_T);
    some.offset_T = range.of(group.offset_T);
    some.adapter_T = range.of(group.adapter_T);
    return some;
}

void mlp_forward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a,
                 const at::Tensor& x_next_tD, spec::LayerSteps steps) {
    ops::Context& ctx = c.group.ctx;
    const weights::LayerLayout& layout = c.group.layout;
    const spec::ModelSpec& spec = c.spec;
    const int64_t hidden = spec.hidden_size;
    const at::Tensor h_TD = c.scratch.h_full.narrow(1, 0, hidden);
    // h is free when terms of sums over ranks are made.
    const at::Tensor terms_TD = c.scratch.h_full.as_strided({h_TD.size(0), hidden}, {hidden, 1});

    if (steps.mid) {
        // 5 output projection, onto the residual stream
        const Group out = layout.out_of(c.layer());
        const at::Tensor o_TN = a.o_full.narrow(1, 0, layout[out].k);
        const Activation o{a.o_full, w[out].input_codes(c.scratch.codes, o_TN.size(0), o_TN.size(1))};
        encode(c, o, o_TN.size(1));
        observe(c, o_input, o_TN);
        onto_stream(
            c, w, attention_branch(a), a.x_tD, a.mid_tD, [&](const at::Tensor& y_tD, const at::Tensor& residual_tD) {
                linear_forward(c.group, out, w[out], o,
                               {.y_TN = y_tD, .residual_TN = residual_tD, .z_TN = a.z_o_tD, .terms_TN = terms_TD});
            });
    }
    if (spec.has_experts(c.layer())) return experts_forward(c, w, a, x_next_tD, steps);
    if (steps.gate_up) {
        // 6 norm
        const Activation h = input_of(c, Group::gate_up, w,
                                      c.scratch.h_full.narrow(1, 0, hidden + layout[Group::gate_up].r), a.u_gate_up_TR);
        make_input(c, post_norm(c, w, a), w[Group::gate_up], h);
        if (!c.group.tp.alone()) encode(c, h, hidden);
        // 7 gate and up
        const at::Tensor gate_up_T2F = a.gate_up_full.narrow(1, 0, 2 * spec.intermediate_size);
        linear_forward(c.group, Group::gate_up, w[Group::gate_up], h,
                       {.y_TN = gate_up_T2F, .z_TN = gate_up_T2F});  // DoRA's scale is the activation's to apply
        observe_group(c, Group::gate_up, gate_up_T2F);
    }
    if (steps.down) {
        // 8 activation
        const at::Tensor gate_up_T2F = a.gate_up_full.narrow(1, 0, 2 * spec.intermediate_size);
        const at::Tensor act_TF = c.scratch.act_full.narrow(1, 0, spec.intermediate_size);
        const Activation act = input_of(c, Group::down, w, c.scratch.act_full, a.u_down_TR);
        if (scales_outputs(c.group)) {
            ops::dora_swiglu_forward(ctx, gate_up_T2F, w[Group::gate_up].scale, act_TF, spec.gate_activation);
        } else {
            ops::swiglu_forward(ctx, gate_up_T2F, act.made(act_TF), act.codes, spec.gate_activation);
        }
        observe(c, down_input, act_TF);
        // 9 down, onto the residual stream
        fill_adapter_columns(c.group, Group::down, w[Group::down], act, a.u_down_TR);
        onto_stream(
            c, w, mlp_branch(a), a.mid_tD, x_next_tD, [&](const at::Tensor& y_tD, const at::Tensor& residual_tD) {
                linear_forward(c.group, Group::down, w[Group::down], act,
                               {.y_TN = y_tD, .residual_TN = residual_tD, .z_TN = a.z_down_tD, .terms_TN = terms_TD});
            });
    }
}

namespace {

/// Steps 9 to 6 of a layer without experts.
void dense_backward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a) {
    ops::Context& ctx = c.group.ctx;
    const spec::ModelSpec& spec = c.spec;
    const int64_t hidden = spec.hidden_size;
    const at::Tensor h_TD = c.scratch.h_full.narrow(1, 0, hidden);
    const at::Tensor act_TF = c.scratch.act_full.narrow(1, 0, spec.intermediate_size);
    const at::Tensor gate_up_T2F = a.gate_up_full.narrow(1, 0, 2 * spec.intermediate_size);

    // 9 down: dact is stored where the activation will be recomputed
    const at::Tensor g_down = product_gradient(c, Group::down, w, mlp_branch(a), a.z_down_tD);
    const Activation dy_down = gradient_of(c, Group::down, w, g_down, a.u_down_TR);
    encode(c, dy_down, hidden);
    input_backward(c.group, Group::down, w[Group::down], dy_down, a.u_down_TR, act_TF);
    // 8 activation: gate and up become their gradients
    const Activation dgate_up = gradient_of(c, Group::gate_up, w, a.gate_up_full, a.u_gate_up_TR);
    if (scales_outputs(c.group)) {
        ops::dora_swiglu_backward(ctx, act_TF, gate_up_T2F, w[Group::gate_up].scale, act_TF,
                                  magnitude_gradients(c.group, Group::gate_up), spec.gate_activation);
    } else {
        ops::swiglu_backward(ctx, act_TF, gate_up_T2F, act_TF, dgate_up.codes, dgate_up.codes_alone,
                             spec.gate_activation);
    }
    weight_backward(c.group, Group::down, g_down, act_TF);
    // 7 gate and up
    input_backward(c.group, Group::gate_up, w[Group::gate_up], dgate_up, a.u_gate_up_TR, h_TD);
    // 6 norm, onto the residual stream's gradient
    input_norm_backward(c, post_norm(c, w, a), a.gate_up_full, /*input_gradient=*/true);
}

}  // namespace

void mlp_backward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a) {
    const spec::ModelSpec& spec = c.spec;
    const int64_t hidden = spec.hidden_size;
    if (spec.has_experts(c.layer()))
        experts_backward(c, w, a);
    else
        dense_backward(c, w, a);
    // 5 output projection
    const Group out = c.group.layout.out_of(c.layer());
    const weights::MatrixGroup& o = c.group.layout[out];
    const at::Tensor g_o = product_gradient(c, out, w, attention_branch(a), a.z_o_tD);
    const at::Tensor o_TN = a.o_full.narrow(1, 0, o.k), u_o = a.o_full.narrow(1, o.k, o.r);
    const at::Tensor do_TN = c.scratch.h_full.narrow(1, 0, o.k);
    // u is among other columns: no product reads codes with it
    const Activation dy_o{g_o, w[out].gradient_codes(c.scratch.codes, g_o.size(0), hidden)};
    encode(c, dy_o, hidden);
    input_backward(c.group, out, w[out], dy_o, u_o, do_TN);
    weight_backward(c.group, out, g_o, o_TN);
}

}  // namespace unsloth::model
