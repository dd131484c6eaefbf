#include "model/normed_input.h"

#include "model/layer_parts.h"
#include "model/mlp.h"
#include "unsloth/ops/norm.h"
#include "unsloth/ops/rows.h"

namespace unsloth::model {
namespace {

/// The rows at hand, and this rank's slice of them.
struct NormedRows {
    at::Tensor full, h_TD, u_TR;
    at::Tensor own_full, own_h_tD, own_u_tR;
};
NormedRows rows_at_hand(const LayerContext& c, Group g) {
    const int64_t hidden = c.spec.hidden_size, r = c.group.layout[g].r;
    const at::Tensor full = c.scratch.h_full, own = c.group.tp.own(full);
    return {full,
            full.narrow(1, 0, hidden),
            full.narrow(1, hidden, r),
            own.narrow(1, 0, hidden + r),
            own.narrow(1, 0, hidden),
            own.narrow(1, hidden, r)};
}

}  // namespace

NormedInput input_norm(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a) {
    constexpr auto role = spec::TensorRole::input_norm;
    const at::Tensor weight_D = c.spec.norms_before() ? w.norm(role) : at::Tensor();
    const Group group = c.group.layout.in_of(c.layer());
    return {group, Place::input_norm, role, input_name(c.spec, group), a.x_tD, weight_D, a.rstd1_t, a.u_qkv_TR};
}
NormedInput post_norm(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a) {
    constexpr auto role = spec::TensorRole::post_norm;
    const at::Tensor weight_D = c.spec.norms_before() ? w.norm(role) : at::Tensor();
    return {Group::gate_up, Place::post_norm, role,      input_name(c.spec, Group::gate_up),
            a.mid_tD,       weight_D,         a.rstd2_t, a.u_gate_up_TR};
}

void make_input(const LayerContext& c, const NormedInput& in, const weights::Operand& w, const Activation& h) {
    ops::Context& ctx = c.group.ctx;
    const TensorParallel& tp = c.group.tp;
    const NormedRows rows = rows_at_hand(c, in.group);
    const GroupContext own = own_rows(c.group);
    const at::Tensor u_TR = tp.alone() ? in.u_TR : at::Tensor();
    const Activation own_h{rows.own_full, tp.alone() ? h.codes : ops::CodedMatrix{}, h.codes_alone};
    if (in.weight_D.defined()) {
        ops::rms_norm_forward(ctx, in.x_tD, in.weight_D, c.spec.rms_norm_eps, own_h.made(rows.own_h_tD), in.rstd_t,
                              norm_site(c, in.norm, Direction::forward), own_h.codes);
    } else {
        ops::copy_2d(ctx, in.x_tD, rows.own_h_tD);
        ops::quantize_rows(ctx, rows.own_h_tD, own_h.codes);
    }
    fill_adapter_columns(own, in.group, w, own_h, u_TR);
    tp.gather(ctx, rows.full, in.name);
    if (!tp.alone() && adapted(c.group, in.group) && in.u_TR.defined()) ops::copy_2d(ctx, rows.u_TR, in.u_TR);
    observe(c, in.name, rows.h_TD);
}

Activation make_mixer_input(const LayerContext& c, Group g, const weights::LayerWeights& w, const LayerSaved& a) {
    const int64_t hidden = c.spec.hidden_size, columns = hidden + c.group.layout[g].r;
    const Activation h = input_of(c, g, w, c.scratch.h_full.narrow(1, 0, columns), a.u_qkv_TR);
    each_slice(c.group.tp, c.scratch, [&](const RowRange& range) {
        with_rows(c, a, range, [&](const LayerContext& some, const LayerSaved& rows, const RowRange&) {
            make_input(some, input_norm(some, w, rows), w[g], h);
        });
    });
    if (!c.group.tp.alone()) encode(c, h, hidden);
    return h;
}

void norm_backward(const LayerContext& c, const NormedInput& in, bool input_gradient) {
    ops::Context& ctx = c.group.ctx;
    const at::Tensor h_tD = c.group.tp.own(c.scratch.h_full).narrow(1, 0, c.spec.hidden_size);
    const at::Tensor g_tD = c.scratch.g_full.narrow(1, 0, c.spec.hidden_size);
    if (!in.weight_D.defined()) {
        if (input_gradient) g_tD.add_(h_tD);
        ops::copy_2d(ctx, in.x_tD, h_tD);
    } else if (input_gradient) {
        ops::rms_norm_backward(ctx, h_tD, in.x_tD, in.weight_D, in.rstd_t, g_tD, norm_gradient(c, in.role),
                               norm_site(c, in.norm, Direction::backward), /*y_TD=*/h_tD);
    } else {
        ops::rms_norm_forward(ctx, in.x_tD, in.weight_D, c.spec.rms_norm_eps, h_tD, in.rstd_t);
    }
}

void input_norm_backward(const LayerContext& c, const NormedInput& in, const at::Tensor& dy_full, bool input_gradient) {
    ops::Context& ctx = c.group.ctx;
    const TensorParallel& tp = c.group.tp;
    const weights::MatrixGroup& layout = c.group.layout[in.group];
    const NormedRows rows = rows_at_hand(c, in.group);
    at::Tensor v_tR = dy_full.narrow(1, layout.n, layout.r);
    if (!tp.alone() && (input_gradient || adapted(c.group, in.group))) {
        // v's terms next to those of dx: dA is then a product of each rank's own rows.
        if (adapted(c.group, in.group)) ops::copy_2d(ctx, v_tR, rows.u_TR);
        tp.reduce_scatter(ctx, rows.full, tp.own(rows.full), in.name);
        v_tR = rows.own_u_tR;
    }
    norm_backward(c, in, input_gradient);
    adapter_backward(own_rows(c.group), in.group, v_tR, rows.own_h_tD);
    if (!c.group.trains_base) return;
    tp.gather(ctx, rows.full, in.name);
    matrix_backward(c.group, in.group, dy_full.narrow(1, 0, layout.n), rows.h_TD);
}

void mixer_input_backward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a,
                          bool input_gradient) {
    each_slice(c.group.tp, c.scratch, [&](const RowRange& range) {
        with_rows(c, a, range, [&](const LayerContext& some, const LayerSaved& rows, const RowRange&) {
            input_norm_backward(some, input_norm(some, w, rows), some.scratch.dqkv_full, input_gradient);
        });
    });
}

}  // namespace unsloth::model
