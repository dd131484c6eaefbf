#include "unsloth/ops/cross_entropy.h"
#include "unsloth/ops/profiler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/checks.h"
#include "ops/cpu_rows.h"
#ifdef UNSLOTH_CUDA
#include "kernels/cross_entropy.h"
#endif

namespace unsloth::ops {

namespace {

/// The largest value, at least the lowest finite float: a row of -inf then gives exp(-inf) = 0 and not NaN. NaN is
/// passed over here and shows up in the sum.
float softmax_maximum(const float* values, int64_t count) {
    float highest = std::numeric_limits<float>::lowest();
    for (int64_t i = 0; i < count; ++i) highest = values[i] > highest ? values[i] : highest;
    return highest;
}

void cross_entropy_cpu(const Context& ctx, const at::Tensor& logits_CV, const at::Tensor& targets_C,
                       const at::Tensor& losses_C, bool gradient, const at::Tensor& weight_C) {
    const cpu::Rows rows(logits_CV);
    const int64_t columns = rows.columns();
    const int32_t* targets = targets_C.const_data_ptr<int32_t>();
    float* losses = losses_C.mutable_data_ptr<float>();
    const float step_scale = gradient ? ctx.scalars->inv_loss_divisor * ctx.scalars->loss_scale : 0.f;
    const float* weights = weight_C.defined() ? weight_C.const_data_ptr<float>() : nullptr;
    at::parallel_for(0, rows.rows(), cpu::grain_size(8 * columns), [&](int64_t begin, int64_t end) {
        std::vector<float> scratch(static_cast<size_t>(columns)), p(static_cast<size_t>(columns));
        for (int64_t row = begin; row < end; ++row) {
            const int32_t target = targets[row];
            UNSLOTH_CHECK(target >= 0 && target < columns, "target ", target, " of row ", row,
                          " is outside the vocabulary of ", columns);
            const float* logits = rows.read(row, scratch.data());
            const float maximum = softmax_maximum(logits, columns);
            for (int64_t c = 0; c < columns; ++c) p[c] = std::exp(logits[c] - maximum);
            const float sum = cpu::lane_sum(columns, [&](int64_t c) { return p[c]; });
            losses[row] = std::log(sum) + (maximum - logits[target]);
            if (!gradient) continue;
            const float scale = weights == nullptr ? step_scale : step_scale * weights[row];
            const float factor = scale / sum;
            for (int64_t c = 0; c < columns; ++c) p[c] *= factor;
            p[target] -= scale;
            rows.write(row, p.data());
        }
    });
}

void accumulate_loss_cpu(const Context& ctx, const at::Tensor& losses_n, Site site) {
    const float* losses = losses_n.const_data_ptr<float>();
    double sum = 0;
    for (int64_t i = 0; i < losses_n.numel(); ++i) sum += losses[i];
    ctx.outcome->loss = static_cast<float>(ctx.outcome->loss + sum * ctx.scalars->inv_loss_divisor);
    if (site.code != spec::all_finite && !std::isfinite(sum)) cpu::report_site(&ctx.outcome->first_bad_site, site.code);
}

void argmax_rows_cpu(const at::Tensor& logits_CV, const at::Tensor& best_C) {
    const cpu::Rows rows(logits_CV);
    const int64_t columns = rows.columns();
    int32_t* best = best_C.mutable_data_ptr<int32_t>();
    at::parallel_for(0, rows.rows(), cpu::grain_size(columns), [&](int64_t begin, int64_t end) {
        std::vector<float> scratch(static_cast<size_t>(columns));
        for (int64_t row = begin; row < end; ++row) {
            const float* logits = rows.read(row, scratch.data());
            float highest = -std::numeric_limits<float>::infinity();
            best[row] = 0;
            for (int64_t c = 0; c < columns; ++c) {
                if (!(logits[c] > highest)) continue;
                highest = logits[c];
                best[row] = static_cast<int32_t>(c);
            }
        }
    });
}

void check_logits(const Context& ctx, const at::Tensor& logits_CV) {
    UNSLOTH_CHECK(logits_CV.defined() && logits_CV.dim() == 2, "logits must have two dimensions");
    check_compute_tensor(ctx, "logits", logits_CV, logits_CV.sizes());
    UNSLOTH_CHECK(logits_CV.size(1) > 0 && logits_CV.size(1) <= std::numeric_limits<int32_t>::max() / 2,
                  "a vocabulary of ", logits_CV.size(1));
}

}  // namespace

void cross_entropy(Context& ctx, const at::Tensor& logits_CV, const at::Tensor& targets_C, const at::Tensor& losses_C,
                   bool gradient, const at::Tensor& weight_C) {
    const Region region(ctx, "cross_entropy");
    check_logits(ctx, logits_CV);
    check_contiguous(ctx, "targets", targets_C, {logits_CV.size(0)}, at::kInt);
    check_contiguous(ctx, "losses", losses_C, {logits_CV.size(0)}, at::kFloat);
    if (weight_C.defined()) check_contiguous(ctx, "weight", weight_C, {logits_CV.size(0)}, at::kFloat);
    UNSLOTH_CHECK(!gradient || ctx.scalars != nullptr, "the gradient's scale is read from ctx.scalars");
    if (!ctx.is_cuda()) return cross_entropy_cpu(ctx, logits_CV, targets_C, losses_C, gradient, weight_C);
#ifdef UNSLOTH_CUDA
    kernels::CrossEntropy params;
    params.rows = logits_CV.size(0);
    params.columns = logits_CV.size(1);
    params.type = dtype_of(logits_CV);
    params.logits = {logits_CV.mutable_data_ptr(), logits_CV.stride(0)};
    params.targets = targets_C.const_data_ptr<int32_t>();
    params.losses = losses_C.mutable_data_ptr<float>();
    params.weights = weight_C.defined() ? weight_C.const_data_ptr<float>() : nullptr;
    params.scalars = ctx.scalars;
    params.gradient = gradient;
    kernels::cross_entropy(params, static_cast<cudaStream_t>(ctx.stream()));
#endif
}

void accumulate_loss(Context& ctx, const at::Tensor& losses_n, Site site) {
    const Region region(ctx, "accumulate_loss");
    check_contiguous(ctx, "losses", losses_n, {losses_n.numel()}, at::kFloat);
    UNSLOTH_CHECK(ctx.scalars != nullptr && ctx.outcome != nullptr,
                  "the loss is accumulated from ctx.scalars to ctx.outcome");
    if (!ctx.is_cuda()) return accumulate_loss_cpu(ctx, losses_n, site);
#ifdef UNSLOTH_CUDA
    kernels::AccumulateLoss params;
    params.count = losses_n.numel();
    params.losses = losses_n.const_data_ptr<float>();
    params.scalars = ctx.scalars;
    params.outcome = ctx.outcome;
    params.site = site.code;
    kernels::accumulate_loss(params, static_cast<cudaStream_t>(ctx.stream()));
#endif
}

void argmax_rows(Context& ctx, const at::Tensor& logits_CV, const at::Tensor& best_C) {
    check_logits(ctx, logits_CV);
    check_contiguous(ctx, "best", best_C, {logits_CV.size(0)}, at::kInt);
    if (!ctx.is_cuda()) return argmax_rows_cpu(logits_CV, best_C);
#ifdef UNSLOTH_CUDA
    kernels::ArgmaxRows params;
    params.rows = logits_CV.size(0);
    params.columns = logits_CV.size(1);
    params.type = dtype_of(logits_CV);
    params.logits = {logits_CV.const_data_ptr(), logits_CV.stride(0)};
    params.best = best_C.mutable_data_ptr<int32_t>();
    kernels::argmax_rows(params, static_cast<cudaStream_t>(ctx.stream()));
#endif
}

}  // namespace unsloth::ops
