#include "unsloth/ops/nf4_experts.h"

#include <cstring>

#include "ops/checks.h"
#include "unsloth/ops/experts.h"
#include "unsloth/ops/profiler.h"
#ifdef UNSLOTH_CUDA
#include "kernels/nf4_experts.h"
#include "ops/kernel_arguments.h"
#endif

namespace unsloth::ops {
namespace {

#ifdef UNSLOTH_CUDA
kernels::Nf4TilesTable table_of(const Nf4Experts& weights) {
    return {.views = static_cast<const spec::Nf4TilesView*>(weights.views.const_data_ptr()),
            .count = static_cast<int64_t>(weights.experts.size()),
            .rows = weights.rows,
            .cols = weights.cols,
            .mxfp4 = weights.experts.front().is_mxfp4()};
}
#endif

void check(const Context& ctx, const Nf4GroupedProduct& args) {
    const auto experts = static_cast<int64_t>(args.weights.experts.size());
    check_contiguous(ctx, "ends", args.ends_E, {experts}, at::kInt);
    check_matrix(ctx, "x", args.x_nK, -1, args.weights.cols);
    const at::ScalarType type = args.x_nK.scalar_type();
    check_matrix(ctx, "out", args.out_nN, args.x_nK.size(0), args.weights.rows, type);
    if (args.bias_EN.defined()) check_matrix(ctx, "bias", args.bias_EN, experts, args.weights.rows, type);
    UNSLOTH_CHECK(!ctx.is_cuda() || type == at::kBFloat16, args.label, ": x is ", type, ", expected bfloat16");
}

/// Dequantises the experts that have rows, one after another.
void by_expert(Context& ctx, const Nf4GroupedProduct& args) {
    const at::Tensor w_1NK = at::empty({1, args.weights.rows, args.weights.cols}, args.x_nK.options());
    const at::Tensor end = at::empty({1}, args.ends_E.options());
    int32_t begin = 0;
    for (std::size_t e = 0; e < args.weights.experts.size(); ++e) {
        const int32_t until = args.ends_E.const_data_ptr<int32_t>()[e];
        UNSLOTH_CHECK(until >= begin && until <= args.x_nK.size(0), "rows of expert ", e, " end at ", until, " of ",
                      args.x_nK.size(0));
        if (until == begin) continue;
        const int64_t first = std::exchange(begin, until), rows = until - first;
        dequantize_nf4_tiles(ctx, args.weights.experts[e], w_1NK[0]);
        end.fill_(rows);
        const auto expert = static_cast<int64_t>(e);
        grouped_product(ctx, {.x_nK = args.x_nK.narrow(0, first, rows),
                              .w_ENK = w_1NK,
                              .ends_E = end,
                              .out_nN = args.out_nN.narrow(0, first, rows),
                              .bias_EN = args.bias_EN.defined() ? args.bias_EN.narrow(0, expert, 1) : at::Tensor(),
                              .accumulate = args.accumulate,
                              .label = args.label});
    }
    UNSLOTH_CHECK(begin == args.x_nK.size(0), "experts have ", begin, " rows of ", args.x_nK.size(0));
}

}  // namespace

Nf4Experts make_nf4_experts(Context& ctx, std::vector<Nf4Tiles> experts) {
    UNSLOTH_CHECK(!experts.empty() && static_cast<int64_t>(experts.size()) <= most_experts, experts.size(),
                  " experts, expected 1 to ", most_experts);
    Nf4Experts made{.rows = experts[0].rows, .cols = experts[0].cols};
    std::vector<spec::Nf4TilesView> views;
    for (const Nf4Tiles& expert : experts) {
        UNSLOTH_CHECK(expert.rows == made.rows && expert.cols == made.cols, "an expert is [", expert.rows, ", ",
                      expert.cols, "], the first [", made.rows, ", ", made.cols, "]");
        UNSLOTH_CHECK(expert.tiles.device() == ctx.device(), "an expert is on ", expert.tiles.device());
        UNSLOTH_CHECK(expert.is_mxfp4() == experts[0].is_mxfp4(), "some experts are in MXFP4, others are not");
        views.push_back(expert.view());
    }
    made.experts = std::move(experts);
    if (!ctx.is_cuda()) return made;
    const auto bytes = static_cast<int64_t>(views.size() * sizeof(views[0]));
    const at::Tensor host = at::empty({bytes}, at::kByte);
    std::memcpy(host.mutable_data_ptr(), views.data(), static_cast<std::size_t>(bytes));
    made.views = host.to(ctx.device());
    return made;
}

void dequantize_nf4_experts(Context& ctx, const Nf4Experts& weights, const at::Tensor& out_ENK) {
    const Region region(ctx, "dequantize experts");
    const auto experts = static_cast<int64_t>(weights.experts.size());
    check_compute_tensor(ctx, "out", out_ENK, {experts, weights.rows, weights.cols});
    UNSLOTH_CHECK(out_ENK.stride(1) >= weights.cols, "out has rows that overlap");
    if (!ctx.is_cuda()) {
        for (int64_t e = 0; e < experts; ++e)
            dequantize_nf4_tiles(ctx, weights.experts[static_cast<std::size_t>(e)], out_ENK[e]);
        return;
    }
#ifdef UNSLOTH_CUDA
    UNSLOTH_CHECK(out_ENK.scalar_type() == at::kBFloat16, "out is ", out_ENK.scalar_type(), ", expected bfloat16");
    kernels::dequantize_nf4_tiles(table_of(weights), out_ENK.mutable_data_ptr(), experts <= 1 ? 0 : out_ENK.stride(0),
                                  out_ENK.stride(1), stream_of(ctx));
#endif
}

void nf4_grouped_product(Context& ctx, const Nf4GroupedProduct& args) {
    const Region region(ctx, args.label);
    check(ctx, args);
    if (args.out_nN.numel() == 0) return;
    if (!ctx.is_cuda()) return by_expert(ctx, args);
#ifdef UNSLOTH_CUDA
    const kernels::ConstMatrix x{args.x_nK.const_data_ptr(), padded_row_stride(args.x_nK)};
    UNSLOTH_CHECK(reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && x.stride % 8 == 0, args.label,
                  ": rows of x must start at multiples of 16 bytes, the row stride is ", x.stride);
    kernels::grouped_nf4({.rows = args.x_nK.size(0),
                          .w = table_of(args.weights),
                          .x = x,
                          .out = target_of(args.out_nN),
                          .accumulate = args.accumulate,
                          .bias = args.bias_EN.defined() ? source_of(args.bias_EN) : kernels::ConstMatrix{},
                          .ends = args.ends_E.const_data_ptr<int32_t>()},
                         stream_of(ctx));
#endif
}

}  // namespace unsloth::ops
