#include "unsloth/ops/decision.h"

#include <algorithm>
#include <vector>

#include "ops/checks.h"
#include "ops/cpu_rows.h"
#include "unsloth/ops/profiler.h"
#ifdef UNSLOTH_CUDA
#include "kernels/decision.h"
#include "ops/kernel_arguments.h"
#endif

namespace unsloth::ops {
namespace {

void decision_loss_cpu(const Context& ctx, const DecisionLoss& args) {
    const cpu::Rows rows(args.logits_CV);
    const int64_t columns = rows.columns(), most = args.ids_CW.size(1);
    const float scale = args.gradient ? ctx.scalars->inv_loss_divisor * ctx.scalars->loss_scale : 0.F;
    for (int64_t row = 0; row < rows.rows(); ++row) {
        const int32_t* const ids = args.ids_CW.const_data_ptr<int32_t>() + row * most;
        const float* const shares = args.shares_CW.const_data_ptr<float>() + row * most;
        const auto count = static_cast<int32_t>(std::find(ids, ids + most, -1) - ids);
        UNSLOTH_CHECK(count > 0 && shares[0] >= 0, "row ", row, " has no options");
        const float* const logits = rows.read(row, nullptr);
        std::vector<float> chosen;
        for (int32_t i = 0; i < count; ++i) {
            UNSLOTH_CHECK(ids[i] >= 0 && ids[i] < columns, "token ", ids[i], " of row ", row,
                          " is outside the vocabulary of ", columns);
            chosen.push_back(logits[ids[i]]);
        }
        std::vector<float> gradient(args.gradient ? static_cast<std::size_t>(columns) : 0);
        const spec::DecisionFigures figures =
            spec::decision_loss(args.rule, chosen.data(), shares, count, [&](int32_t i, double slope) {
                if (args.gradient)
                    gradient[static_cast<std::size_t>(ids[i])] = static_cast<float>(slope * static_cast<double>(scale));
            });
        args.losses_C.mutable_data_ptr<float>()[row] = static_cast<float>(figures.loss);
        args.brier_C.mutable_data_ptr<float>()[row] = static_cast<float>(figures.brier);
        args.accuracy_C.mutable_data_ptr<float>()[row] = static_cast<float>(figures.accuracy);
        if (args.gradient) rows.write(row, gradient.data());
    }
}

}  // namespace

void decision_loss(Context& ctx, const DecisionLoss& args) {
    const Region region(ctx, "decision_loss");
    const int64_t rows = args.logits_CV.size(0), columns = args.logits_CV.size(1), most = args.ids_CW.size(1);
    check_tensor(ctx, "logits", args.logits_CV, {rows, columns}, at::kFloat);
    check_contiguous(ctx, "the options' tokens", args.ids_CW, {rows, most}, at::kInt);
    check_contiguous(ctx, "the options' shares", args.shares_CW, {rows, most}, at::kFloat);
    check_contiguous(ctx, "losses", args.losses_C, {rows}, at::kFloat);
    check_contiguous(ctx, "brier", args.brier_C, {rows}, at::kFloat);
    check_contiguous(ctx, "accuracy", args.accuracy_C, {rows}, at::kFloat);
    UNSLOTH_CHECK(most > 0 && most <= most_option_tokens, most, " tokens of options");
    UNSLOTH_CHECK(!args.gradient || ctx.scalars != nullptr, "the gradient's scale is read from ctx.scalars");
    if (!ctx.is_cuda()) return decision_loss_cpu(ctx, args);
#ifdef UNSLOTH_CUDA
    kernels::decision_loss({.rule = args.rule,
                            .rows = rows,
                            .columns = columns,
                            .most = most,
                            .logits = {args.logits_CV.mutable_data_ptr(), args.logits_CV.stride(0)},
                            .ids = args.ids_CW.const_data_ptr<int32_t>(),
                            .shares = args.shares_CW.const_data_ptr<float>(),
                            .losses = args.losses_C.mutable_data_ptr<float>(),
                            .brier = args.brier_C.mutable_data_ptr<float>(),
                            .accuracy = args.accuracy_C.mutable_data_ptr<float>(),
                            .scalars = ctx.scalars,
                            .gradient = args.gradient},
                           stream_of(ctx));
#endif
}

void count_decisions(Context& ctx, const at::Tensor& brier_n, const at::Tensor& accuracy_n,
                     const at::Tensor& measures_M) {
    const Region region(ctx, "count_decisions");
    const int64_t n = brier_n.numel();
    check_contiguous(ctx, "brier", brier_n, {n}, at::kFloat);
    check_contiguous(ctx, "accuracy", accuracy_n, {n}, at::kFloat);
    check_contiguous(ctx, "measures", measures_M, {measures_M.numel()}, at::kFloat);
    UNSLOTH_CHECK(measures_M.numel() >= decision_measures, measures_M.numel(), " measures");
    if (!ctx.is_cuda()) {
        const auto sum = [n](const at::Tensor& values) {
            double total = 0;
            for (int64_t i = 0; i < n; ++i) total += static_cast<double>(values.const_data_ptr<float>()[i]);
            return static_cast<float>(total);
        };
        float* const measures = measures_M.mutable_data_ptr<float>();
        measures[sum_of_brier] += sum(brier_n);
        measures[sum_of_accuracy] += sum(accuracy_n);
        measures[decisions] += static_cast<float>(n);
        return;
    }
#ifdef UNSLOTH_CUDA
    kernels::count_decisions({.count = n,
                              .brier = brier_n.const_data_ptr<float>(),
                              .accuracy = accuracy_n.const_data_ptr<float>(),
                              .measures = measures_M.mutable_data_ptr<float>()},
                             stream_of(ctx));
#endif
}

}  // namespace unsloth::ops
