// Argument checks and dispatch of the router, the order of rows, weighted sums and load balancing.
#include "unsloth/ops/experts.h"

#include "ops/checks.h"
#include "ops/experts_cpu.h"
#include "unsloth/ops/profiler.h"
#ifdef UNSLOTH_CUDA
#include "kernels/experts.h"
#include "kernels/rows.h"
#include "ops/kernel_arguments.h"
#endif

namespace unsloth::ops {
namespace {

struct RouterSizes {
    int64_t tokens, experts, choices;
};

RouterSizes check_router(const Context& ctx, int64_t experts, const at::Tensor& ids_Tk) {
    UNSLOTH_CHECK(ids_Tk.defined() && ids_Tk.dim() == 2, "ids must be [tokens, choices]");
    const int64_t tokens = ids_Tk.size(0), choices = ids_Tk.size(1);
    UNSLOTH_CHECK(experts >= 1 && experts <= most_experts, experts, " experts, expected 1 to ", most_experts);
    UNSLOTH_CHECK(choices >= 1 && choices <= std::min(experts, most_choices), choices, " choices of ", experts,
                  " experts, expected at most ", std::min(experts, most_choices));
    check_contiguous(ctx, "ids", ids_Tk, {tokens, choices}, at::kInt);
    return {tokens, experts, choices};
}

void check_choices(const Context& ctx, const at::Tensor& places_Tk, const at::Tensor& weights_Tk) {
    UNSLOTH_CHECK(places_Tk.defined() && places_Tk.dim() == 2, "places must be [tokens, choices]");
    check_contiguous(ctx, "places", places_Tk, places_Tk.sizes(), at::kInt);
    check_contiguous(ctx, "weights", weights_Tk, places_Tk.sizes(), at::kFloat);
}

#ifdef UNSLOTH_CUDA
static_assert(kernels::most_experts == most_experts && kernels::most_choices == most_choices);

const float* floats_of(const at::Tensor& tensor) {
    return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}
const int32_t* ints_of(const at::Tensor& tensor) {
    return tensor.defined() ? tensor.const_data_ptr<int32_t>() : nullptr;
}
#endif

/// dy has a row for each token, or one for each place.
void weighted_rows_backward(Context& ctx, const cpu::WeightedRows& args) {
    check_choices(ctx, args.places, args.weights);
    check_contiguous(ctx, "dweights", args.dweights, args.places.sizes(), at::kFloat);
    check_matrix(ctx, "z", args.z, args.places.numel());
    const at::ScalarType type = args.z.scalar_type();
    check_matrix(ctx, "dz", args.dz, args.places.numel(), args.z.size(1), type);
    check_matrix(ctx, "dy", args.dy, args.dy_by_place ? args.places.numel() : args.places.size(0), args.z.size(1),
                 type);
    if (!ctx.is_cuda()) return cpu::weighted_rows_backward(args);
#ifdef UNSLOTH_CUDA
    kernels::weighted_rows_backward({.tokens = args.places.size(0),
                                     .columns = args.z.size(1),
                                     .choices = static_cast<int>(args.places.size(1)),
                                     .type = dtype_of(args.z),
                                     .dy_by_place = args.dy_by_place,
                                     .dy = source_of(args.dy),
                                     .z = source_of(args.z),
                                     .dz = target_of(args.dz),
                                     .places = args.places.const_data_ptr<int32_t>(),
                                     .weights = args.weights.const_data_ptr<float>(),
                                     .dweights = args.dweights.mutable_data_ptr<float>()},
                                    stream_of(ctx));
#endif
}

}  // namespace

void route(Context& ctx, const Route& args) {
    const Region region(ctx, "route");
    check_matrix(ctx, "logits", args.logits_TE, -1, -1, at::kFloat);
    const auto [tokens, experts, choices] = check_router(ctx, args.logits_TE.size(1), args.ids_Tk);
    check_matrix(ctx, "logits", args.logits_TE, tokens, experts, at::kFloat);
    check_contiguous(ctx, "weights", args.weights_Tk, {tokens, choices}, at::kFloat);
    if (args.probabilities_TE.defined())
        check_matrix(ctx, "probabilities", args.probabilities_TE, tokens, experts, at::kFloat);
    if (!ctx.is_cuda()) return cpu::route(args);
#ifdef UNSLOTH_CUDA
    kernels::route(
        {.tokens = tokens,
         .experts = static_cast<int>(experts),
         .choices = static_cast<int>(choices),
         .kind = args.weights,
         .logits = source_of(args.logits_TE),
         .ids = args.ids_Tk.mutable_data_ptr<int32_t>(),
         .weights = args.weights_Tk.mutable_data_ptr<float>(),
         .probabilities = args.probabilities_TE.defined() ? target_of(args.probabilities_TE) : kernels::Matrix{}},
        stream_of(ctx));
#endif
}

void route_backward(Context& ctx, const RouteBackward& args) {
    const Region region(ctx, "route_backward");
    check_matrix(ctx, "dlogits", args.dlogits_TE, -1, -1, at::kFloat);
    const auto [tokens, experts, choices] = check_router(ctx, args.dlogits_TE.size(1), args.ids_Tk);
    check_matrix(ctx, "dlogits", args.dlogits_TE, tokens, experts, at::kFloat);
    check_contiguous(ctx, "weights", args.weights_Tk, {tokens, choices}, at::kFloat);
    check_contiguous(ctx, "dweights", args.dweights_Tk, {tokens, choices}, at::kFloat);
    if (args.dweights_TE.defined())
        check_matrix(ctx, "dweights of any expert", args.dweights_TE, tokens, experts, at::kFloat);
    if (args.slopes_E.defined()) check_contiguous(ctx, "slopes", args.slopes_E, {experts}, at::kFloat);
    if (args.counted_T.defined()) check_contiguous(ctx, "counted", args.counted_T, {tokens}, at::kInt);
    const bool reads_probabilities = args.weights == spec::RouterWeights::of_all || args.slopes_E.defined();
    if (reads_probabilities) check_matrix(ctx, "probabilities", args.probabilities_TE, tokens, experts, at::kFloat);
    if (!ctx.is_cuda()) return cpu::route_backward(args);
#ifdef UNSLOTH_CUDA
    kernels::route_backward(
        {.tokens = tokens,
         .experts = static_cast<int>(experts),
         .choices = static_cast<int>(choices),
         .kind = args.weights,
         .ids = args.ids_Tk.const_data_ptr<int32_t>(),
         .weights = args.weights_Tk.const_data_ptr<float>(),
         .dweights = args.dweights_Tk.const_data_ptr<float>(),
         .dweights_of_any = args.dweights_TE.defined() ? source_of(args.dweights_TE) : kernels::ConstMatrix{},
         .probabilities = reads_probabilities ? source_of(args.probabilities_TE) : kernels::ConstMatrix{},
         .slopes = floats_of(args.slopes_E),
         .counted = ints_of(args.counted_T),
         .dlogits = target_of(args.dlogits_TE)},
        stream_of(ctx));
#endif
}

void order_by_expert(Context& ctx, const at::Tensor& ids_Tk, const ExpertOrder& order) {
    const Region region(ctx, "order_by_expert");
    const auto [tokens, experts, choices] = check_router(ctx, order.ends_E.numel(), ids_Tk);
    check_contiguous(ctx, "ends", order.ends_E, {experts}, at::kInt);
    check_contiguous(ctx, "tokens", order.tokens_n, {tokens * choices}, at::kInt);
    check_contiguous(ctx, "places", order.places_Tk, {tokens, choices}, at::kInt);
    UNSLOTH_CHECK(tokens * choices <= INT32_MAX, tokens, " tokens of ", choices, " choices are too many");
    if (!ctx.is_cuda()) return cpu::order_by_expert(ids_Tk, order);
#ifdef UNSLOTH_CUDA
    const int64_t bytes = order_workspace(ctx.device(), tokens * choices, experts);
    UNSLOTH_CHECK(bytes == 0 || (ctx.workspace.defined() && ctx.workspace.numel() >= bytes),
                  "the order by expert needs a workspace of ", bytes, " bytes");
    kernels::order_by_expert({.rows = tokens * choices,
                              .experts = static_cast<int>(experts),
                              .choices = static_cast<int>(choices),
                              .ids = ids_Tk.const_data_ptr<int32_t>(),
                              .ends = order.ends_E.mutable_data_ptr<int32_t>(),
                              .tokens = order.tokens_n.mutable_data_ptr<int32_t>(),
                              .places = order.places_Tk.mutable_data_ptr<int32_t>(),
                              .workspace = bytes == 0 ? nullptr : ctx.workspace.mutable_data_ptr()},
                             stream_of(ctx));
#endif
}

int64_t order_workspace(at::Device device, int64_t rows, int64_t experts) {
#ifdef UNSLOTH_CUDA
    if (device.is_cuda()) return kernels::order_workspace(rows, experts);
#endif
    (void)device, (void)rows, (void)experts;
    return 0;
}

void combine(Context& ctx, const Combine& args) {
    const Region region(ctx, "combine");
    check_choices(ctx, args.places_Tk, args.weights_Tk);
    const int64_t tokens = args.places_Tk.size(0);
    check_matrix(ctx, "z", args.z_nD, args.places_Tk.numel());
    const at::ScalarType type = args.z_nD.scalar_type();
    check_matrix(ctx, "y", args.y_TD, tokens, args.z_nD.size(1), type);
    if (args.residual_TD.defined()) check_matrix(ctx, "residual", args.residual_TD, tokens, args.z_nD.size(1), type);
    if (!ctx.is_cuda()) return cpu::combine(args);
#ifdef UNSLOTH_CUDA
    kernels::sum_rows({.rows = tokens,
                       .columns = args.z_nD.size(1),
                       .type = dtype_of(args.z_nD),
                       .source = source_of(args.z_nD),
                       .out = target_of(args.y_TD),
                       .places = args.places_Tk.const_data_ptr<int32_t>(),
                       .places_each = static_cast<int>(args.places_Tk.size(1)),
                       .choice_weight = args.weights_Tk.const_data_ptr<float>(),
                       .residual = args.residual_TD.defined() ? source_of(args.residual_TD) : kernels::ConstMatrix{}},
                      stream_of(ctx));
#endif
}

void combine_backward(Context& ctx, const CombineBackward& args) {
    const Region region(ctx, "combine_backward");
    weighted_rows_backward(ctx, {.dy = args.dy_TD,
                                 .z = args.z_nD,
                                 .places = args.places_Tk,
                                 .weights = args.weights_Tk,
                                 .dz = args.dz_nD,
                                 .dweights = args.dweights_Tk});
}

void weigh_rows(Context& ctx, const WeighRows& args) {
    const Region region(ctx, "weigh_rows");
    weighted_rows_backward(ctx, {.dy = args.dact_nF,
                                 .z = args.act_nF,
                                 .places = args.places_Tk,
                                 .weights = args.weights_Tk,
                                 .dz = args.dact_nF,
                                 .dweights = args.dweights_Tk,
                                 .dy_by_place = true});
}

void router_load(Context& ctx, const RouterLoad& args) {
    const Region region(ctx, "router_load");
    check_matrix(ctx, "probabilities", args.probabilities_TE, -1, -1, at::kFloat);
    const auto [tokens, experts, choices] = check_router(ctx, args.probabilities_TE.size(1), args.ids_Tk);
    check_matrix(ctx, "probabilities", args.probabilities_TE, tokens, experts, at::kFloat);
    check_contiguous(ctx, "sums", args.sums_2E, {2, experts}, at::kDouble);
    if (args.counted_T.defined()) check_contiguous(ctx, "counted", args.counted_T, {tokens}, at::kInt);
    if (!ctx.is_cuda()) return cpu::router_load(args);
#ifdef UNSLOTH_CUDA
    kernels::router_load({.tokens = tokens,
                          .experts = static_cast<int>(experts),
                          .choices = static_cast<int>(choices),
                          .ids = args.ids_Tk.const_data_ptr<int32_t>(),
                          .probabilities = source_of(args.probabilities_TE),
                          .counted = ints_of(args.counted_T),
                          .sums = args.sums_2E.mutable_data_ptr<double>()},
                         stream_of(ctx));
#endif
}

void balance(Context& ctx, const Balance& args) {
    const Region region(ctx, "balance");
    const int64_t experts = args.slopes_E.numel();
    UNSLOTH_CHECK(experts >= 1 && experts <= most_experts && args.choices >= 1, experts, " experts, ", args.choices,
                  " choices");
    check_contiguous(ctx, "slopes", args.slopes_E, {experts}, at::kFloat);
    check_contiguous(ctx, "sums", args.sums_2E, {2, experts}, at::kDouble);
    check_contiguous(ctx, "loss", args.loss, {1}, at::kFloat);
    UNSLOTH_CHECK(ctx.scalars != nullptr, "the gradient's scale is read from ctx.scalars");
    if (!ctx.is_cuda()) return cpu::balance(args, static_cast<double>(ctx.scalars->loss_scale));
#ifdef UNSLOTH_CUDA
    kernels::balance({.experts = static_cast<int>(experts),
                      .choices = static_cast<int>(args.choices),
                      .coefficient = args.coefficient,
                      .sums = args.sums_2E.const_data_ptr<double>(),
                      .scalars = ctx.scalars,
                      .loss = args.loss.mutable_data_ptr<float>(),
                      .slopes = args.slopes_E.mutable_data_ptr<float>()},
                     stream_of(ctx));
#endif
}

}  // namespace unsloth::ops
