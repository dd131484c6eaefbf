// Legend as in decoder_layer.cpp; E experts, k of them a token, n = T k rows in expert order, F of an expert.
#include "model/moe.h"

#include "model/branch.h"
#include "model/layer_parts.h"
#include "model/normed_input.h"
#include "unsloth/ops/experts.h"
#include "unsloth/ops/gemm.h"
#include "unsloth/ops/swiglu.h"

namespace unsloth::model {
namespace {

/// What a buffer with k rows for each token holds, as rows of so many columns; it may be wider.
at::Tensor expert_rows(const LayerContext& c, const at::Tensor& buffer, int64_t columns) {
    return buffer.as_strided({buffer.size(0) * c.spec.experts->top_k, columns}, {columns, 1});
}

/// A layer's tensors as its operators take them.
struct ExpertViews {
    ExpertViews(const LayerContext& c, const LayerSaved& a)
        : tokens_n(a.experts.tokens_Tk.view({-1})),
          gate_up_n2F(expert_rows(c, a.experts.gate_up_T, 2 * c.spec.experts->intermediate_size)),
          act_nF(expert_rows(c, c.scratch.act_full, c.spec.experts->intermediate_size)),
          rows_nD(expert_rows(c, c.scratch.rows_T, c.spec.hidden_size)) {}
    /// scratch.out_T: what experts give, or the gradient of their activation.
    static at::Tensor out(const LayerContext& c, int64_t columns) { return expert_rows(c, c.scratch.out_T, columns); }
    at::Tensor tokens_n, gate_up_n2F, act_nF, rows_nD;
};

at::Tensor matrices(const LayerContext& c, Group g, const weights::LayerWeights& w) {
    return weights::experts_of(w[g], c.spec.experts->count);
}

/// Which experts the tokens pass, from what they read.
void choose_experts(const LayerContext& c, const weights::LayerWeights& w, const ExpertsSaved& e,
                    const at::Tensor& h_TD) {
    ops::Context& ctx = c.group.ctx;
    const spec::RouterWeights kind = c.spec.experts->weights;
    ops::gemm(ctx, {.a = h_TD,
                    .b = w.norm(spec::TensorRole::router),
                    .out = e.router_TE,
                    .transpose_b = true,
                    .label = "router"});
    observe(c, "mlp.gate", e.router_TE);
    ops::route(ctx, {.weights = kind,
                     .logits_TE = e.router_TE,
                     .ids_Tk = e.ids_Tk,
                     .weights_Tk = e.weights_Tk,
                     .probabilities_TE = kind == spec::RouterWeights::of_all ? e.router_TE : at::Tensor()});
    ops::order_by_expert(ctx, e.ids_Tk, {e.ends_E, e.tokens_Tk.view({-1}), e.places_Tk});
}

}  // namespace

void experts_forward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a,
                     const at::Tensor& x_next_tD, spec::LayerSteps steps) {
    ops::Context& ctx = c.group.ctx;
    const ExpertsSaved& e = a.experts;
    const ExpertViews v(c, a);

    if (steps.gate_up) {
        // 6 norm, and the tokens' ways
        const at::Tensor h_TD = c.scratch.h_full.narrow(1, 0, c.spec.hidden_size);
        make_input(c, post_norm(c, w, a), w[Group::experts_gate_up], {h_TD});
        if (!steps.routed) choose_experts(c, w, e, h_TD);
        // 7 gate and up
        ops::gather_rows(ctx, h_TD, v.tokens_n, v.rows_nD);
        ops::grouped_product(ctx, {.x_nK = v.rows_nD,
                                   .w_ENK = matrices(c, Group::experts_gate_up, w),
                                   .ends_E = e.ends_E,
                                   .out_nN = v.gate_up_n2F,
                                   .label = "experts gate_up"});
    }
    if (steps.down) {
        // 8 activation
        ops::swiglu_forward(ctx, v.gate_up_n2F, v.act_nF, {}, c.spec.gate_activation);
        // 9 down, onto the residual stream
        const at::Tensor out_nD = ExpertViews::out(c, c.spec.hidden_size);
        ops::grouped_product(ctx, {.x_nK = v.act_nF,
                                   .w_ENK = matrices(c, Group::experts_down, w),
                                   .ends_E = e.ends_E,
                                   .out_nN = out_nD,
                                   .label = "experts down"});
        onto_stream(c, w, mlp_branch(a), a.mid_tD, x_next_tD,
                    [&](const at::Tensor& y_TD, const at::Tensor& residual_TD) {
                        ops::combine(ctx, {.z_nD = out_nD,
                                           .places_Tk = e.places_Tk,
                                           .weights_Tk = e.weights_Tk,
                                           .residual_TD = residual_TD,
                                           .y_TD = y_TD});
                    });
    }
}

void experts_backward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a) {
    ops::Context& ctx = c.group.ctx;
    const spec::ExpertsSpec& experts = *c.spec.experts;
    const ExpertsSaved& e = a.experts;
    const ExpertViews v(c, a);
    const at::Tensor h_TD = c.scratch.h_full.narrow(1, 0, c.spec.hidden_size);

    // 9 down: the gradient of the activation as if each expert had the weight 1, which gives those of the weights
    const at::Tensor g_TD = product_gradient(c, Group::experts_down, w, mlp_branch(a), {});
    const at::Tensor dact_nF = ExpertViews::out(c, experts.intermediate_size);
    ops::gather_rows(ctx, g_TD, v.tokens_n, v.rows_nD);
    ops::grouped_product(ctx, {.x_nK = v.rows_nD,
                               .w_ENK = matrices(c, Group::experts_down, w),
                               .ends_E = e.ends_E,
                               .out_nN = dact_nF,
                               .transpose_w = false,
                               .label = "experts dx down"});
    ops::swiglu_forward(ctx, v.gate_up_n2F, v.act_nF, {}, c.spec.gate_activation);
    ops::weigh_rows(ctx, {.act_nF = v.act_nF,
                          .places_Tk = e.places_Tk,
                          .weights_Tk = e.weights_Tk,
                          .dact_nF = dact_nF,
                          .dweights_Tk = c.scratch.dweights_Tk});
    // 8 activation: gate and up become their gradients
    ops::swiglu_backward(ctx, dact_nF, v.gate_up_n2F, {}, {}, false, c.spec.gate_activation);
    // 7 gate and up
    ops::grouped_product(ctx, {.x_nK = v.gate_up_n2F,
                               .w_ENK = matrices(c, Group::experts_gate_up, w),
                               .ends_E = e.ends_E,
                               .out_nN = v.rows_nD,
                               .transpose_w = false,
                               .label = "experts dx gate_up"});
    ops::sum_rows(ctx, v.rows_nD, e.places_Tk, h_TD);
    // 6 the tokens' ways, and norm, onto the residual stream's gradient
    ops::route_backward(ctx, {.weights = experts.weights,
                              .ids_Tk = e.ids_Tk,
                              .weights_Tk = e.weights_Tk,
                              .dweights_Tk = c.scratch.dweights_Tk,
                              .probabilities_TE =
                                  experts.weights == spec::RouterWeights::of_all ? e.router_TE : at::Tensor(),
                              .dlogits_TE = e.router_TE});
    ops::copy_2d(ctx, e.router_TE, c.scratch.drouter_TE);
    ops::gemm(ctx, {.a = c.scratch.drouter_TE,
                    .b = w.norm(spec::TensorRole::router),
                    .out = h_TD,
                    .beta = 1.0,
                    .label = "router dx"});
    norm_backward(c, post_norm(c, w, a), /*input_gradient=*/true);
}

}  // namespace unsloth::model
