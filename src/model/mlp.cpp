// Legend as in decoder_layer.cpp.
#include "model/mlp.h"

#include "model/layer_parts.h"
#include "unsloth/ops/norm.h"
#include "unsloth/ops/swiglu.h"

namespace unsloth::model {

LayerSaved rows_of(const LayerSaved& saved, const RowRange& range) {
    LayerSaved some;
    some.x_TD = range.of(saved.x_TD);
    some.o_full = range.of(saved.o_full);
    some.mid_TD = range.of(saved.mid_TD);
    some.rstd2_T = range.of(saved.rstd2_T);
    some.u_gate_up_TR = range.of(saved.u_gate_up_TR);
    some.gate_up_full = range.of(saved.gate_up_full);
    some.u_down_TR = range.of(saved.u_down_TR);
    some.z_o_TD = range.of(saved.z_o_TD);
    some.z_down_TD = range.of(saved.z_down_TD);
    return some;
}

Scratch rows_of(const Scratch& scratch, const RowRange& range) {
    Scratch some;
    some.h_full = range.of(scratch.h_full);
    some.act_full = range.of(scratch.act_full);
    some.g_full = range.of(scratch.g_full);
    some.dz_full = range.of(scratch.dz_full);
    some.codes = scratch.codes;
    return some;
}

GroupContext rows_of(const GroupContext& group, const RowRange& range) {
    GroupContext some = group;
    some.row_T = range.of(group.row_T);
    some.offset_T = range.of(group.offset_T);
    return some;
}

void mlp_forward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a,
                 const at::Tensor& x_next_TD, spec::LayerSteps steps) {
    ops::Context& ctx = c.group.ctx;
    const weights::LayerLayout& layout = c.group.layout;
    const spec::ModelSpec& spec = c.spec;
    const int64_t hidden = spec.hidden_size;
    const at::Tensor h_TD = c.scratch.h_full.narrow(1, 0, hidden);

    if (steps.mid) {
        // 5 output projection, onto the residual stream
        const ops::Fp8Matrix o_codes = encoded(c, w[Group::o], a.o_full.narrow(1, 0, spec.q_size()));
        linear_forward(c.group, Group::o, w[Group::o], a.o_full, o_codes,
                       {.y_TN = a.mid_TD, .residual_TN = a.x_TD, .z_TN = a.z_o_TD});
    }
    if (steps.gate_up) {
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

void mlp_backward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a) {
    ops::Context& ctx = c.group.ctx;
    const weights::LayerLayout& layout = c.group.layout;
    const spec::ModelSpec& spec = c.spec;
    const int64_t hidden = spec.hidden_size;
    // No adapter columns stand beside h here: its rows have no gaps, as sums over ranks want them.
    const at::Tensor h_TD = c.scratch.h_full.as_strided({a.x_TD.size(0), hidden}, {hidden, 1}),
                     g_TD = c.scratch.g_full.narrow(1, 0, hidden);
    const at::Tensor act_TF = c.scratch.act_full.narrow(1, 0, spec.intermediate_size);
    const at::Tensor gate_up_T2F = a.gate_up_full.narrow(1, 0, 2 * spec.intermediate_size);

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
}

}  // namespace unsloth::model
