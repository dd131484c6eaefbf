// Legend as in decoder_layer.cpp; E experts, k of them a token, n = T k rows in expert order, F of an expert.
#include "model/moe.h"

#include "model/branch.h"
#include "model/layer_parts.h"
#include "model/normed_input.h"
#include "model/row_range.h"
#include "unsloth/ops/experts.h"
#include "unsloth/ops/gemm.h"
#include "unsloth/ops/nf4_experts.h"
#include "unsloth/ops/rows.h"
#include "unsloth/ops/swiglu.h"
#include "unsloth/weights/part.h"

namespace unsloth::model {
namespace {

/// What a buffer with k rows for each token holds, as rows of `columns`; it may be wider.
at::Tensor expert_rows(const LayerContext& c, const at::Tensor& buffer, int64_t columns, int64_t stride) {
    return buffer.as_strided({buffer.size(0) * c.spec.experts->top_k, columns}, {stride, 1});
}
at::Tensor expert_rows(const LayerContext& c, const at::Tensor& buffer, int64_t columns) {
    return expert_rows(c, buffer, columns, columns);
}

/// The adapter of a group of experts; r = 0: none takes part.
spec::LoraModule adapter_of(const LayerContext& c, Group g) {
    return adapted(c.group, g) ? c.group.adapters->lora(c.layer())[weights::adapted_of(g)] : spec::LoraModule{};
}

/// A group's matrices and adapter, and what its products read: rows [n, K + r].
struct ExpertGroup {
    ExpertGroup(const LayerContext& c, Group g, const weights::LayerWeights& w, const ExpertsSaved& e,
                const at::Tensor& buffer, const at::Tensor& u_T)
        : group(g),
          tokens_n(e.tokens_Tk.view({-1})),
          lora(adapter_of(c, g)),
          of(weights::experts_of(w[g], c.spec.experts->count, lora.r)) {
        const int64_t k = c.group.layout[g].k;
        // Among the terms of a sum over ranks it is one rank's.
        const bool adds_bias = !weights::is_cut_by_inputs(g) || c.group.tp.first();
        if (w[g].bias_N.defined() && adds_bias) bias_EN = w[g].bias_N.view({c.spec.experts->count, -1});
        full = expert_rows(c, buffer, k + lora.r, expert_stride(k, c.group.layout[g].r));
        x_nK = full.narrow(1, 0, k);
        if (lora.r > 0) u_nr = expert_rows(c, u_T, lora.r);
        if (lora.r > 0 && c.scratch.v_T.defined()) v_nr = expert_rows(c, c.scratch.v_T, lora.r);
    }
    Group group;
    at::Tensor tokens_n;
    spec::LoraModule lora;
    weights::ExpertMatrices of;
    at::Tensor full, x_nK;
    at::Tensor u_nr, v_nr;  ///< x·Aᵀ and its gradient; undefined without an adapter
    at::Tensor bias_EN;     ///< undefined: there is none
};
ExpertGroup gate_up_of(const LayerContext& c, const weights::LayerWeights& w, const ExpertsSaved& e) {
    return {c, Group::experts_gate_up, w, e, c.scratch.rows_T, e.u_gate_up_T};
}
ExpertGroup down_of(const LayerContext& c, const weights::LayerWeights& w, const ExpertsSaved& e) {
    return {c, Group::experts_down, w, e, c.scratch.act_full, e.u_down_T};
}

/// The same of a base in tiles, with u in x's tail.
void multiply_tiles(ops::Context& ctx, const ExpertGroup& g, const at::Tensor& ends_E, const at::Tensor& out_nN,
                    const char* label) {
    int64_t first = 0;
    for (const ops::Nf4Experts& part : g.of.tiles) {
        ops::nf4_grouped_product(ctx,
                                 {.x_nK = g.x_nK,
                                  .weights = part,
                                  .ends_E = ends_E,
                                  .out_nN = out_nN.narrow(1, first, part.rows),
                                  .bias_EN = g.bias_EN.defined() ? g.bias_EN.narrow(1, first, part.rows) : at::Tensor(),
                                  .label = label});
        first += part.rows;
    }
    if (g.lora.r == 0) return;
    ops::grouped_product(ctx, {.x_nK = g.full.narrow(1, g.x_nK.size(1), g.lora.r),
                               .w_ENK = g.of.b_ENr,
                               .ends_E = ends_E,
                               .out_nN = out_nN,
                               .accumulate = true,
                               .label = "lora experts uB"});
}

/// out = [x | u]·[W | sB]ᵀ, u = x·Aᵀ being made and kept.
void multiply(const LayerContext& c, const ExpertGroup& g, const at::Tensor& ends_E, const at::Tensor& out_nN,
              const char* label) {
    ops::Context& ctx = c.group.ctx;
    if (g.lora.r > 0) {
        const at::Tensor tail_nr = g.full.narrow(1, g.x_nK.size(1), g.lora.r);
        ops::grouped_product(
            ctx,
            {.x_nK = g.x_nK, .w_ENK = g.of.a_ErK, .ends_E = ends_E, .out_nN = tail_nr, .label = "lora experts xA"});
        if (c.group.adapter_T.defined())
            ops::zero_others(ctx, c.group.adapter_T, c.group.owners->at(g.group), tail_nr, g.tokens_n);
        ops::copy_2d(ctx, tail_nr, g.u_nr);
    }
    if (!g.of.tiles.empty()) return multiply_tiles(ctx, g, ends_E, out_nN, label);
    ops::grouped_product(ctx, {.x_nK = g.full,
                               .w_ENK = g.of.forward_ENKr,
                               .ends_E = ends_E,
                               .out_nN = out_nN,
                               .bias_EN = g.bias_EN,
                               .label = label});
}

/// dx = dy·W + v·A, v = dy·sB being made.
void multiply_backward(const LayerContext& c, const ExpertGroup& g, const at::Tensor& ends_E, const at::Tensor& dy_nN,
                       const at::Tensor& dx_nK, const char* label) {
    ops::Context& ctx = c.group.ctx;
    ops::grouped_product(
        ctx,
        {.x_nK = dy_nN, .w_ENK = g.of.w_ENK, .ends_E = ends_E, .out_nN = dx_nK, .transpose_w = false, .label = label});
    if (g.lora.r == 0) return;
    ops::grouped_product(ctx, {.x_nK = dy_nN,
                               .w_ENK = g.of.b_ENr,
                               .ends_E = ends_E,
                               .out_nN = g.v_nr,
                               .transpose_w = false,
                               .label = "lora experts dyB"});
    ops::grouped_product(ctx, {.x_nK = g.v_nr,
                               .w_ENK = g.of.a_ErK,
                               .ends_E = ends_E,
                               .out_nN = dx_nK,
                               .transpose_w = false,
                               .accumulate = true,
                               .label = "lora experts vA"});
}

/// The gradients of a group's adapter, by expert, whole.
at::Tensor gradient_by_expert(const LayerContext& c, const weights::Parameter& p) {
    const at::Tensor all = c.group.parameters->gradient(p);
    return all.view({p.experts, all.size(0) / p.experts, all.size(1)});
}
void b_gradient(const LayerContext& c, const ExpertGroup& g, const at::Tensor& ends_E, const at::Tensor& dy_nN) {
    if (g.lora.r == 0) return;
    const at::Tensor db_ENr = gradient_by_expert(c, *c.group.adapters->b({c.layer(), weights::adapted_of(g.group)}));
    for (const weights::RowRun& rows : weights::rows_of_expert(c.group.layout, g.group))
        ops::grouped_gradient(c.group.ctx, {.a_nM = dy_nN.narrow(1, rows.own, rows.rows),
                                            .b_nN = g.u_nr,
                                            .ends_E = ends_E,
                                            .out_EMN = db_ENr.narrow(1, rows.whole, rows.rows),
                                            .scale = g.lora.scale,
                                            .label = "lora experts dB"});
}
void a_gradient(const LayerContext& c, const ExpertGroup& g, const at::Tensor& ends_E) {
    if (g.lora.r == 0) return;
    const weights::Parameter& a = *c.group.adapters->a({c.layer(), weights::adapted_of(g.group)});
    const spec::Range columns = c.group.layout[g.group].slices.front().part.columns;
    ops::grouped_gradient(c.group.ctx, {.a_nM = g.v_nr,
                                        .b_nN = g.x_nK,
                                        .ends_E = ends_E,
                                        .out_EMN = gradient_by_expert(c, a).narrow(2, columns.begin, columns.size),
                                        .label = "lora experts dA"});
}

/// In scratch.h_full, of all ranks' tokens.
void make_norm(const LayerContext& c, const NormedInput& in) {
    ops::Context& ctx = c.group.ctx;
    const at::Tensor h_full = c.scratch.h_full, h_tD = c.group.tp.own(h_full).narrow(1, 0, c.spec.hidden_size);
    if (in.weight_D.defined())
        ops::rms_norm_forward(ctx, in.x_tD, in.weight_D, c.spec.rms_norm_eps, h_tD, in.rstd_t,
                              norm_site(c, in.norm, Direction::forward));
    else
        ops::copy_2d(ctx, in.x_tD, h_tD);
    c.group.tp.gather(ctx, h_full, in.name);
    observe(c, in.name, h_full.narrow(1, 0, c.spec.hidden_size));
}

/// Of a micro-batch's tokens those that pass experts: what only makes up for tokens that ranks do not divide would
/// count among the experts' loads.
RowRange routed(const LayerContext& c) {
    const int64_t tokens = c.scratch.h_full.size(0);
    return {0, c.group.tp.alone() ? tokens : c.tokens.segments.q_offsets.back(), tokens};
}

/// work(context, saved) with their rows.
template <class Work>
void with_routed(const LayerContext& c, const ExpertsSaved& e, const Work& work) {
    const RowRange range = routed(c);
    if (range.rows == range.tokens) return work(c, e);
    Scratch scratch = c.scratch;
    for (at::Tensor* const buffer : {&scratch.h_full, &scratch.act_full, &scratch.rows_T, &scratch.out_T, &scratch.v_T,
                                     &scratch.dweights_Tk, &scratch.dweights_TE, &scratch.drouter_TE})
        *buffer = range.of(*buffer);
    ExpertsSaved some = e;
    for (at::Tensor* const buffer : {&some.ids_Tk, &some.weights_Tk, &some.tokens_Tk, &some.places_Tk, &some.router_TE,
                                     &some.gate_up_T, &some.u_gate_up_T, &some.u_down_T})
        *buffer = range.of(*buffer);
    work(LayerContext{c.spec, c.group, c.tokens, scratch, c.counts, c.cp}, some);
}

/// terms_TD, whose rows of routed tokens are there: this rank's of all ranks' sum, which may be in their place.
void sum_onto_ranks(const LayerContext& c, const at::Tensor& terms_TN, const at::Tensor& own_tN, const char* what) {
    const RowRange range = routed(c);
    if (range.rows < range.tokens) ops::zero_2d(c.group.ctx, terms_TN.narrow(0, range.rows, range.tokens - range.rows));
    c.group.tp.reduce_scatter(c.group.ctx, terms_TN, own_tN, what);
}

float gate_limit(const LayerContext& c) {
    return static_cast<float>(c.spec.gate_limit);
}

at::Tensor added_to_logits(const LayerContext& c) {
    const auto layer = static_cast<std::size_t>(c.layer());
    const ExpertsProbe* const probe = c.group.experts;
    return probe != nullptr && layer < probe->added_to_logits.size() ? probe->added_to_logits[layer] : at::Tensor();
}

/// Which experts the tokens pass, from what they read.
void choose_experts(const LayerContext& c, const weights::LayerWeights& w, const ExpertsSaved& e,
                    const at::Tensor& h_TD) {
    ops::Context& ctx = c.group.ctx;
    const BalanceBuffers& balance = c.scratch.balance;
    const bool keeps = needs_probabilities(*c.spec.experts, balance.sums_2E.defined());
    ops::Gemm logits{
        .a = h_TD, .b = w.norm(spec::TensorRole::router), .out = e.router_TE, .transpose_b = true, .label = "router"};
    if (c.spec.experts->router_bias) logits.bias = w.norm(spec::TensorRole::router_bias);
    ops::gemm(ctx, logits);
    if (const at::Tensor added_E = added_to_logits(c); added_E.defined()) e.router_TE.add_(added_E);
    observe(c, cat("mlp.", c.spec.experts->router).c_str(), e.router_TE);
    ops::route(ctx, {.weights = c.spec.experts->weights,
                     .logits_TE = e.router_TE,
                     .ids_Tk = e.ids_Tk,
                     .weights_Tk = e.weights_Tk,
                     .probabilities_TE = keeps ? e.router_TE : at::Tensor()});
    if (balance.sums_2E.defined())
        ops::router_load(ctx, {.ids_Tk = e.ids_Tk, .probabilities_TE = e.router_TE, .sums_2E = balance.sums_2E});
    ops::order_by_expert(ctx, e.ids_Tk, {e.ends_E, e.tokens_Tk.view({-1}), e.places_Tk});
}

/// What each expert gives, as terms of a sum over ranks, onto `y`.
void add_up(const LayerContext& c, const ExpertsSaved& e, const at::Tensor& out_nD, const at::Tensor& y_tD,
            const at::Tensor& residual_tD) {
    ops::Combine combine{
        .z_nD = out_nD, .places_Tk = e.places_Tk, .weights_Tk = e.weights_Tk, .residual_TD = residual_tD, .y_TD = y_tD};
    if (c.group.tp.alone()) return ops::combine(c.group.ctx, combine);
    const int64_t hidden = c.spec.hidden_size;
    // h is free: the experts' rows are copies.
    const at::Tensor terms_TD = c.scratch.h_full.as_strided({c.scratch.h_full.size(0), hidden}, {hidden, 1});
    combine.residual_TD = at::Tensor();
    combine.y_TD = routed(c).of(terms_TD);
    ops::combine(c.group.ctx, combine);
    sum_onto_ranks(c, terms_TD, y_tD, "experts down");
    if (residual_tD.defined()) y_tD.add_(residual_tD);
}

/// Steps 9 to 7, of routed tokens: scratch.h_full becomes this rank's terms of the gradient of what they read, without
/// the router's.
void products_backward(const LayerContext& c, const weights::LayerWeights& w, const ExpertsSaved& e,
                       const at::Tensor& g_TD) {
    ops::Context& ctx = c.group.ctx;
    const int64_t f = c.spec.experts->intermediate_size;
    const at::Tensor gate_up_n2F = expert_rows(c, e.gate_up_T, 2 * f);
    const ExpertGroup gate_up = gate_up_of(c, w, e), down = down_of(c, w, e);
    const auto weigh = [&](const at::Tensor& act_n, const at::Tensor& dact_n) {
        ops::weigh_rows(ctx, {.act_nF = act_n,
                              .places_Tk = e.places_Tk,
                              .weights_Tk = e.weights_Tk,
                              .dact_nF = dact_n,
                              .dweights_Tk = c.scratch.dweights_Tk});
    };

    // 9 down: the gradient of the activation as if each expert had the weight 1, which gives those of the weights
    const at::Tensor dact_nF = expert_rows(c, c.scratch.out_T, f), g_nD = gate_up.x_nK;
    if (down.bias_EN.defined())
        ops::gemm(ctx, {.a = g_TD,
                        .b = down.bias_EN,
                        .out = c.scratch.dweights_TE,
                        .transpose_b = true,
                        .label = "experts' biases dweights"});
    ops::gather_rows(ctx, g_TD, down.tokens_n, g_nD);
    multiply_backward(c, down, e.ends_E, g_nD, dact_nF, "experts dx down");
    if (down.lora.r > 0) {
        weigh(down.u_nr, down.u_nr);
        weigh(down.v_nr, down.v_nr);
    }
    b_gradient(c, down, e.ends_E, g_nD);
    ops::swiglu_forward(ctx, gate_up_n2F, down.x_nK, {}, c.spec.gate_activation, gate_limit(c));
    weigh(down.x_nK, dact_nF);
    a_gradient(c, down, e.ends_E);
    // 8 activation: gate and up become their gradients
    ops::swiglu_backward(ctx, dact_nF, gate_up_n2F, {}, {}, false, c.spec.gate_activation, gate_limit(c));
    // 7 gate and up
    multiply_backward(c, gate_up, e.ends_E, gate_up_n2F, gate_up.x_nK, "experts dx gate_up");
    b_gradient(c, gate_up, e.ends_E, gate_up_n2F);
    ops::sum_rows(ctx, gate_up.x_nK, e.places_Tk, c.scratch.h_full.narrow(1, 0, c.spec.hidden_size));
}

/// Onto that. The logits' gradient is linear in that of the weights, of which each rank has its terms; what the load
/// balancing adds is one rank's.
void router_backward(const LayerContext& c, const weights::LayerWeights& w, const ExpertsSaved& e) {
    const spec::ExpertsSpec& experts = *c.spec.experts;
    const BalanceBuffers& balance = c.scratch.balance;
    const bool keeps = needs_probabilities(experts, balance.sums_2E.defined()), first = c.group.tp.first();
    ops::route_backward(c.group.ctx, {.weights = experts.weights,
                                      .ids_Tk = e.ids_Tk,
                                      .weights_Tk = e.weights_Tk,
                                      .dweights_Tk = c.scratch.dweights_Tk,
                                      .dweights_TE = first ? c.scratch.dweights_TE : at::Tensor(),
                                      .probabilities_TE = keeps ? e.router_TE : at::Tensor(),
                                      .slopes_E = first ? balance.slopes_E : at::Tensor(),
                                      .dlogits_TE = e.router_TE});
    ops::copy_2d(c.group.ctx, e.router_TE, c.scratch.drouter_TE);
    ops::gemm(c.group.ctx, {.a = c.scratch.drouter_TE,
                            .b = w.norm(spec::TensorRole::router),
                            .out = c.scratch.h_full.narrow(1, 0, c.spec.hidden_size),
                            .beta = 1.0,
                            .label = "router dx"});
}

}  // namespace

void begin_balance(const MicroBatch& micro) {
    const BalanceBuffers& balance = micro.activations().scratch().balance;
    if (balance.sums_2E.defined()) balance.sums_2E.zero_();
}

void add_balance(ops::Context& ctx, const Network& network, const MicroBatch& micro) {
    const BalanceBuffers& balance = micro.activations().scratch().balance;
    if (!balance.sums_2E.defined()) return;
    ops::balance(ctx, {.sums_2E = balance.sums_2E,
                       .choices = network.spec.experts->top_k,
                       .coefficient = network.router_aux,
                       .loss = balance.loss,
                       .slopes_E = balance.slopes_E});
    at::from_blob(&ctx.outcome->loss, {1}, balance.loss.options()).add_(balance.loss);
}

void experts_forward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a,
                     const at::Tensor& x_next_tD, spec::LayerSteps steps) {
    ops::Context& ctx = c.group.ctx;
    // 6 norm
    if (steps.gate_up) make_norm(c, post_norm(c, w, a));
    with_routed(c, a.experts, [&](const LayerContext& some, const ExpertsSaved& e) {
        const at::Tensor gate_up_n2F = expert_rows(c, e.gate_up_T, 2 * c.spec.experts->intermediate_size);
        if (steps.gate_up) {
            // and the experts of each token
            const at::Tensor h_TD = some.scratch.h_full.narrow(1, 0, c.spec.hidden_size);
            if (!steps.routed) choose_experts(some, w, e, h_TD);
            // 7 gate and up
            const ExpertGroup gate_up = gate_up_of(some, w, e);
            ops::gather_rows(ctx, h_TD, gate_up.tokens_n, gate_up.x_nK);
            multiply(some, gate_up, e.ends_E, gate_up_n2F, "experts gate_up");
        }
        if (!steps.down) return;
        // 8 activation
        const ExpertGroup down = down_of(some, w, e);
        ops::swiglu_forward(ctx, gate_up_n2F, down.x_nK, {}, c.spec.gate_activation, gate_limit(c));
        // 9 down, onto the residual stream
        const at::Tensor out_nD = expert_rows(c, some.scratch.out_T, c.spec.hidden_size);
        multiply(some, down, e.ends_E, out_nD, "experts down");
        if (c.group.experts != nullptr && c.group.experts->see)
            c.group.experts->see(c.layer(), {e.ids_Tk, e.weights_Tk, e.places_Tk, out_nD});
        onto_stream(
            c, w, mlp_branch(a), a.mid_tD, x_next_tD,
            [&](const at::Tensor& y_tD, const at::Tensor& residual_tD) { add_up(c, e, out_nD, y_tD, residual_tD); });
    });
}

void experts_backward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a) {
    const TensorParallel& tp = c.group.tp;
    const at::Tensor h_full = c.scratch.h_full;
    const at::Tensor g_TD = routed(c).of(product_gradient(c, Group::experts_down, w, mlp_branch(a), {}));
    with_routed(c, a.experts, [&](const LayerContext& some, const ExpertsSaved& e) {
        products_backward(some, w, e, g_TD);
        router_backward(some, w, e);
    });
    // 6 norm, onto the residual stream's gradient
    if (!tp.alone()) sum_onto_ranks(c, h_full, tp.own(h_full), "experts gate_up");
    norm_backward(c, post_norm(c, w, a), /*input_gradient=*/true);
    if (adapter_of(c, Group::experts_gate_up).r == 0) return;
    tp.gather(c.group.ctx, h_full, "the experts' input");
    with_routed(c, a.experts, [&](const LayerContext& some, const ExpertsSaved& e) {
        const ExpertGroup gate_up = gate_up_of(some, w, e);
        ops::gather_rows(c.group.ctx, some.scratch.h_full.narrow(1, 0, c.spec.hidden_size), gate_up.tokens_n,
                         gate_up.x_nK);
        a_gradient(some, gate_up, e.ends_E);
    });
}

}  // namespace unsloth::model
