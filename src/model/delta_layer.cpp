// Legend: T tokens, D hidden, C channels of the convolution, V = H v values of all heads, H value heads, R adapters'
// columns. The columns of qkv_TN: C, V of the gate z, H of b, H of a. Tensor-parallel ranks have some heads each.
#include "model/delta_layer.h"

#include "model/delta_chain.h"
#include "model/layer_parts.h"
#include "model/normed_input.h"
#include "unsloth/ops/dora.h"
#include "unsloth/ops/gated_delta.h"
#include "unsloth/weights/part.h"

namespace unsloth::model {
namespace {

/// The parts of a matrix with a column for each output of delta_in.
struct DeltaViews {
    at::Tensor mixed_TC, z_THv, b_TH, a_TH;
};
DeltaViews delta_views(const spec::DeltaSpec& delta, const at::Tensor& x_TN) {
    const int64_t channels = delta.channels(), values = delta.values(), heads = delta.value_heads;
    return {x_TN.narrow(1, 0, channels), heads_view(x_TN, channels, heads, delta.value_dim),
            x_TN.narrow(1, channels + values, heads), x_TN.narrow(1, channels + values + heads, heads)};
}

at::Tensor value_heads(const spec::DeltaSpec& delta, const at::Tensor& x_TN) {
    return heads_view(x_TN, 0, delta.value_heads, delta.value_dim);
}

ops::DeltaShape shape_of(const spec::DeltaSpec& delta) {
    return {delta.key_heads, delta.value_heads, delta.key_dim, delta.value_dim};
}

/// This rank's channels, in runs: no channel of the convolution sees another.
std::vector<weights::RowRun> channel_runs(const LayerContext& c) {
    return weights::row_runs(c.group.layout[Group::delta_in].slices.front().part);
}
at::Tensor channels_of(const weights::RowRun& run, const at::Tensor& x_TC) {
    return x_TC.narrow(1, run.own, run.rows);
}
/// Of the convolution's weight, or its gradient (which may be undefined), of all ranks' channels.
at::Tensor taps_of(const LayerContext& c, const weights::RowRun& run, const at::Tensor& whole) {
    return whole.defined() ? whole.view({-1, c.spec.delta->taps}).narrow(0, run.whole, run.rows) : whole;
}

/// Of all value heads' numbers, or their gradients (which may be undefined), those of this rank's.
at::Tensor own_heads(const LayerContext& c, const at::Tensor& whole) {
    const int64_t heads = c.spec.delta->value_heads;
    return whole.defined() ? whole.narrow(0, c.group.tp.place().rank * heads, heads) : whole;
}

const ops::Segments& rows_of(const LayerContext& c) {
    if (c.tokens.chain != nullptr) return c.tokens.chain->chunks;
    return c.tokens.segments;
}

/// What chunks resume from, of one member; nothing where rows are whole.
ops::KeptStates kept(const LayerContext& c, const LayerSaved& a, at::Tensor DeltaKept::* data) {
    if (c.tokens.chain != nullptr)
        return {a.chunks.*data, c.tokens.chain->own, c.tokens.chain->own_S, /*read_only=*/true};
    return {};
}

/// Rows after those that resume begin with this pass.
void clear_begun(const LayerContext& c, const DeltaKept& states) {
    const DecodeBatch& rows = *c.tokens.cached;
    for (auto row = static_cast<std::size_t>(rows.going_on.count()); row < rows.states.size(); ++row)
        for (const at::Tensor& data : {states.inputs_NwC, states.states_NHkv}) data.select(0, rows.states[row]).zero_();
}

/// Of generation: rows resume from what was kept of them.
void forward_with_states(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a) {
    ++c.counts.attention;
    const spec::DeltaSpec& delta = *c.spec.delta;
    const DeltaViews in = delta_views(delta, a.qkv_TN);
    const DecodeBatch& rows = *c.tokens.cached;
    clear_begun(c, a.kept);
    ops::delta_net_forward(c.group.ctx, rows.all,
                           {.shape = shape_of(delta),
                            .in = {in.mixed_TC, in.b_TH, in.a_TH, w.norm(spec::TensorRole::delta_a_log),
                                   w.norm(spec::TensorRole::delta_dt_bias)},
                            .taps_Cw = w.norm(spec::TensorRole::delta_conv).view({delta.channels(), delta.taps}),
                            .norm_v = w.norm(spec::TensorRole::delta_norm),
                            .z_THv = in.z_THv,
                            .eps = c.spec.rms_norm_eps,
                            .inputs = {a.kept.inputs_NwC, rows.states, rows.states_S},
                            .states = {a.kept.states_NHkv, rows.states, rows.states_S}},
                           c.scratch.convolved_TC, value_heads(delta, a.ungated_TN), value_heads(delta, a.o_full));
    fill_adapter_columns(c.group, Group::delta_out, w[Group::delta_out], {a.o_full}, {});
}

/// What the delta rule reads: the convolved channels are made again.
ops::DeltaInputs convolve(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a) {
    const DeltaViews in = delta_views(*c.spec.delta, attended(c, a.qkv_TN));
    const at::Tensor convolved_TC = attended(c, c.scratch.convolved_TC);
    for (const weights::RowRun& run : channel_runs(c))
        ops::short_conv_forward(c.group.ctx, rows_of(c), channels_of(run, in.mixed_TC),
                                taps_of(c, run, w.norm(spec::TensorRole::delta_conv)), channels_of(run, convolved_TC),
                                kept(c, a, &DeltaKept::inputs_NwC));
    return {convolved_TC, in.b_TH, in.a_TH, own_heads(c, w.norm(spec::TensorRole::delta_a_log)),
            own_heads(c, w.norm(spec::TensorRole::delta_dt_bias))};
}

/// o_THv = the rule's outputs. `first`: not a recomputation, for which the chunks' states were kept.
void advance_states(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a, const at::Tensor& o_THv,
                    bool first) {
    const spec::DeltaSpec& delta = *c.spec.delta;
    if (c.tokens.chain == nullptr || !first)
        return ops::delta_rule_forward(c.group.ctx, shape_of(delta), rows_of(c), convolve(c, w, a), o_THv,
                                       kept(c, a, &DeltaKept::states_NHkv));
    gather_rows_before(c, delta_views(delta, attended(c, a.qkv_TN)).mixed_TC, a.chunks.inputs_NwC);
    const ops::DeltaInputs in = convolve(c, w, a);
    PassedStates passed(c, PassedStates::Way::on);
    const auto before = [&](int turn) {
        passed.to_turn(turn);
        passed.keep(turn, a.chunks.states_NHkv);
    };
    ops::delta_rule_forward(c.group.ctx, shape_of(delta), rows_of(c), in, o_THv, passed.states(), {2, before});
    passed.finish();
}

/// From the gradient of the rule's outputs to those of what it and the convolution read.
void retreat_states(const LayerContext& c, const LayerSaved& a, const ops::DeltaInputs& in, const at::Tensor& do_THv,
                    const ops::DeltaGradients& out) {
    const ops::DeltaShape shape = shape_of(*c.spec.delta);
    if (c.tokens.chain == nullptr)
        return ops::delta_rule_backward(c.group.ctx, shape, rows_of(c), in, do_THv, c.scratch.states, out);
    PassedStates passed(c, PassedStates::Way::back);
    ops::delta_rule_backward(
        c.group.ctx, shape, rows_of(c), in, do_THv, c.scratch.states, out,
        {kept(c, a, &DeltaKept::states_NHkv), passed.states(), {2, [&](int turn) { passed.to_turn(turn); }}});
    passed.finish();
}

}  // namespace

void delta_forward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a,
                   const spec::LayerSteps& steps) {
    const spec::DeltaSpec& delta = *c.spec.delta;
    if (steps.qkv) {
        ++c.counts.qkv;
        const Activation h = make_mixer_input(c, Group::delta_in, w, a);
        linear_forward(c.group, Group::delta_in, w[Group::delta_in], h, {.y_TN = a.qkv_TN, .z_TN = a.z_qkv_TN});
        observe_group(c, Group::delta_in, a.qkv_TN);
    }
    if (steps.attention && c.tokens.cached != nullptr) return forward_with_states(c, w, a);
    if (!steps.attention) return;
    ++c.counts.attention;
    const at::Tensor o_THv = value_heads(delta, attended(c, a.ungated_TN));
    advance_states(c, w, a, o_THv, /*first=*/steps.down);
    ops::gated_norm_forward(c.group.ctx, o_THv, delta_views(delta, attended(c, a.qkv_TN)).z_THv,
                            w.norm(spec::TensorRole::delta_norm), c.spec.rms_norm_eps,
                            value_heads(delta, attended(c, a.o_full)));
    zero_added(c, a.o_full);
    fill_adapter_columns(c.group, Group::delta_out, w[Group::delta_out], {a.o_full}, {});
}

void delta_backward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a, bool input_gradient) {
    ops::Context& ctx = c.group.ctx;
    const spec::DeltaSpec& delta = *c.spec.delta;
    const weights::MatrixGroup& layout = c.group.layout[Group::delta_in];
    const DeltaViews in = delta_views(delta, attended(c, a.qkv_TN)),
                     gradient = delta_views(delta, attended(c, c.scratch.dqkv_full));
    const at::Tensor dy_THv = value_heads(delta, attended(c, c.scratch.h_full)),
                     dconvolved_TC = attended(c, c.scratch.dconvolved_TC);
    ops::gated_norm_backward(ctx, dy_THv, value_heads(delta, attended(c, a.ungated_TN)), in.z_THv,
                             w.norm(spec::TensorRole::delta_norm), c.spec.rms_norm_eps, dy_THv, gradient.z_THv,
                             norm_gradient(c, spec::TensorRole::delta_norm));
    retreat_states(
        c, a, convolve(c, w, a), dy_THv,
        {dconvolved_TC, gradient.b_TH, gradient.a_TH, own_heads(c, norm_gradient(c, spec::TensorRole::delta_a_log)),
         own_heads(c, norm_gradient(c, spec::TensorRole::delta_dt_bias))});
    const bool shared = c.tokens.chain != nullptr;
    for (const weights::RowRun& run : channel_runs(c))
        ops::short_conv_backward(
            ctx, rows_of(c), channels_of(run, dconvolved_TC), channels_of(run, in.mixed_TC),
            taps_of(c, run, w.norm(spec::TensorRole::delta_conv)), channels_of(run, gradient.mixed_TC),
            taps_of(c, run, norm_gradient(c, spec::TensorRole::delta_conv)), kept(c, a, &DeltaKept::inputs_NwC),
            shared ? gradients_of_rows_before(c, a.chunks.inputs_NwC) : at::Tensor());
    if (shared) return_rows_before(c, gradient.mixed_TC);
    zero_added(c, c.scratch.dqkv_full);
    const at::Tensor dqkv_TN = c.scratch.dqkv_full.narrow(1, 0, layout.n);
    Activation dy = input_gradient ? gradient_of(c, Group::delta_in, w, c.scratch.dqkv_full, a.u_qkv_TR)
                                   : Activation{c.scratch.dqkv_full};
    dy.codes_alone = false;
    ops::quantize_rows(ctx, dqkv_TN, dy.codes);
    if (scales_outputs(c.group))
        ops::dora_backward(ctx, dqkv_TN, a.z_qkv_TN, w[Group::delta_in].scale, dqkv_TN,
                           magnitude_gradients(c.group, Group::delta_in));
    input_backward(c.group, Group::delta_in, w[Group::delta_in], dy, a.u_qkv_TR,
                   input_gradient ? c.scratch.h_full.narrow(1, 0, c.spec.hidden_size) : at::Tensor());
    mixer_input_backward(c, w, a, input_gradient);
}

}  // namespace unsloth::model
