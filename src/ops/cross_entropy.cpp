#include "unsloth/ops/cross_entropy.h"
#include "unsloth/ops/profiler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/checks.h"
#include "ops/cpu_rows.h"
#ifdef UNSLOTH_CUDA
#include "kernels/cross_entropy.h"
#include "ops/kernel_arguments.h"
#endif

namespace unsloth::ops {

namespace {

/// The largest value, at least the lowest finite float: a row of -inf then gives exp(-inf) = 0 and not NaN. NaN is
/// ignored here and shows up in the sum.
float softmax_maximum(const float* values, int64_t count) {
    float highest = std::numeric_limits<float>::lowest();
    for (int64_t i = 0; i < count; ++i) highest = values[i] > highest ? values[i] : highest;
    return highest;
}

/// What the gradient of a row's loss is multiplied by.
class GradientScale {
  public:
    GradientScale(const Context& ctx, bool gradient, const at::Tensor& weight_C)
        : of_step_(gradient ? ctx.scalars->inv_loss_divisor * ctx.scalars->loss_scale : 0.f),
          weights_(weight_C.defined() ? weight_C.const_data_ptr<float>() : nullptr) {}
    float operator()(int64_t row) const { return weights_ == nullptr ? of_step_ : of_step_ * weights_[row]; }

  private:
    float of_step_;
    const float* weights_;
};

void cross_entropy_cpu(const Context& ctx, const at::Tensor& logits_CV, const at::Tensor& targets_C,
                       const at::Tensor& losses_C, bool gradient, const at::Tensor& weight_C) {
    const cpu::Rows rows(logits_CV);
    const int64_t columns = rows.columns();
    const int32_t* targets = targets_C.const_data_ptr<int32_t>();
    float* losses = losses_C.mutable_data_ptr<float>();
    const GradientScale scale_of(ctx, gradient, weight_C);
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
            const float scale = scale_of(row);
            const float factor = scale / sum;
            for (int64_t c = 0; c < columns; ++c) p[c] *= factor;
            p[target] -= scale;
            rows.write(row, p.data());
        }
    });
}

/// Places of a row's three statistics.
constexpr int64_t maximum_of = 0, sum_of = 1, target_logit_of = 2;

void cross_entropy_statistics_cpu(const at::Tensor& logits_CV, const at::Tensor& targets_C, int64_t first,
                                  const at::Tensor& statistics_3C) {
    const cpu::Rows rows(logits_CV);
    const int64_t columns = rows.columns(), count = rows.rows();
    const int32_t* targets = targets_C.const_data_ptr<int32_t>();
    float* statistics = statistics_3C.mutable_data_ptr<float>();
    at::parallel_for(0, count, cpu::grain_size(8 * columns), [&](int64_t begin, int64_t end) {
        std::vector<float> scratch(static_cast<size_t>(columns));
        for (int64_t row = begin; row < end; ++row) {
            const float* logits = rows.read(row, scratch.data());
            const float maximum = softmax_maximum(logits, columns);
            const int64_t target = targets[row] - first;
            statistics[maximum_of * count + row] = maximum;
            statistics[sum_of * count + row] =
                cpu::lane_sum(columns, [&](int64_t c) { return std::exp(logits[c] - maximum); });
            statistics[target_logit_of * count + row] = target >= 0 && target < columns ? logits[target] : 0.f;
        }
    });
}

void cross_entropy_of_slice_cpu(const Context& ctx, const at::Tensor& logits_CV, const at::Tensor& targets_C,
                                int64_t first, const at::Tensor& statistics_S3C, const at::Tensor& losses_C,
                                bool gradient, const at::Tensor& weight_C) {
    const cpu::Rows rows(logits_CV);
    const int64_t columns = rows.columns(), count = rows.rows(), slices = statistics_S3C.size(0);
    const int32_t* targets = targets_C.const_data_ptr<int32_t>();
    const float* statistics = statistics_S3C.const_data_ptr<float>();
    float* losses = losses_C.mutable_data_ptr<float>();
    const GradientScale scale_of(ctx, gradient, weight_C);
    at::parallel_for(0, count, cpu::grain_size(8 * columns), [&](int64_t begin, int64_t end) {
        std::vector<float> scratch(static_cast<size_t>(columns)), p(static_cast<size_t>(columns));
        for (int64_t row = begin; row < end; ++row) {
            const auto statistic = [&](int64_t slice, int64_t which) {
                return statistics[(slice * 3 + which) * count + row];
            };
            float maximum = statistic(0, maximum_of), sum = 0.f, target_logit = 0.f;
            for (int64_t s = 1; s < slices; ++s) maximum = std::max(maximum, statistic(s, maximum_of));
            for (int64_t s = 0; s < slices; ++s) {
                sum += statistic(s, sum_of) * std::exp(statistic(s, maximum_of) - maximum);
                target_logit += statistic(s, target_logit_of);
            }
            losses[row] = std::log(sum) + (maximum - target_logit);
            if (!gradient) continue;
            const float scale = scale_of(row);
            const float factor = scale / sum;
            const float* logits = rows.read(row, scratch.data());
            for (int64_t c = 0; c < columns; ++c) p[c] = std::exp(logits[c] - maximum) * factor;
            if (const int64_t target = targets[row] - first; target >= 0 && target < columns) p[target] -= scale;
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

/// The checks that losses of a whole vocabulary and of a slice of it share.
void check_losses(const Context& ctx, const at::Tensor& logits_CV, const at::Tensor& targets_C,
                  const at::Tensor& losses_C, bool gradient, const at::Tensor& weight_C) {
    check_logits(ctx, logits_CV);
    check_contiguous(ctx, "targets", targets_C, {logits_CV.size(0)}, at::kInt);
    check_contiguous(ctx, "losses", losses_C, {logits_CV.size(0)}, at::kFloat);
    if (weight_C.defined()) check_contiguous(ctx, "weight", weight_C, {logits_CV.size(0)}, at::kFloat);
    UNSLOTH_CHECK(!gradient || ctx.scalars != nullptr, "the gradient's scale is read from ctx.scalars");
}

#ifdef UNSLOTH_CUDA
kernels::CrossEntropy cross_entropy_params(const Context& ctx, const at::Tensor& logits_CV, const at::Tensor& targets_C,
                                           const at::Tensor& losses_C, bool gradient, const at::Tensor& weight_C) {
    kernels::CrossEntropy params;
    params.rows = logits_CV.size(0);
    params.columns = logits_CV.size(1);
    params.type = dtype_of(logits_CV);
    params.logits = target_of(logits_CV);
    params.targets = targets_C.const_data_ptr<int32_t>();
    params.losses = losses_C.mutable_data_ptr<float>();
    params.weights = weight_C.defined() ? weight_C.const_data_ptr<float>() : nullptr;
    params.scalars = ctx.scalars;
    params.gradient = gradient;
    return params;
}
#endif

}  // namespace

void cross_entropy(Context& ctx, const at::Tensor& logits_CV, const at::Tensor& targets_C, const at::Tensor& losses_C,
                   bool gradient, const at::Tensor& weight_C) {
    const Region region(ctx, "cross_entropy");
    check_losses(ctx, logits_CV, targets_C, losses_C, gradient, weight_C);
    if (!ctx.is_cuda()) return cross_entropy_cpu(ctx, logits_CV, targets_C, losses_C, gradient, weight_C);
#ifdef UNSLOTH_CUDA
    kernels::cross_entropy(cross_entropy_params(ctx, logits_CV, targets_C, losses_C, gradient, weight_C),
                           stream_of(ctx));
#endif
}

void cross_entropy_statistics(Context& ctx, const at::Tensor& logits_CV, const at::Tensor& targets_C, int64_t first,
                              const at::Tensor& statistics_3C) {
    const Region region(ctx, "cross_entropy");
    check_logits(ctx, logits_CV);
    check_contiguous(ctx, "targets", targets_C, {logits_CV.size(0)}, at::kInt);
    check_contiguous(ctx, "statistics", statistics_3C, {3, logits_CV.size(0)}, at::kFloat);
    if (!ctx.is_cuda()) return cross_entropy_statistics_cpu(logits_CV, targets_C, first, statistics_3C);
#ifdef UNSLOTH_CUDA
    kernels::CrossEntropyStatistics params;
    params.rows = logits_CV.size(0);
    params.columns = logits_CV.size(1);
    params.first = first;
    params.type = dtype_of(logits_CV);
    params.logits = source_of(logits_CV);
    params.targets = targets_C.const_data_ptr<int32_t>();
    params.statistics = statistics_3C.mutable_data_ptr<float>();
    kernels::cross_entropy_statistics(params, stream_of(ctx));
#endif
}

void cross_entropy_of_slice(Context& ctx, const at::Tensor& logits_CV, const at::Tensor& targets_C, int64_t first,
                            const at::Tensor& statistics_S3C, const at::Tensor& losses_C, bool gradient,
                            const at::Tensor& weight_C) {
    const Region region(ctx, "cross_entropy");
    check_losses(ctx, logits_CV, targets_C, losses_C, gradient, weight_C);
    UNSLOTH_CHECK(statistics_S3C.dim() == 3 && statistics_S3C.size(0) > 0, "statistics of no slice");
    check_contiguous(ctx, "statistics", statistics_S3C, {statistics_S3C.size(0), 3, logits_CV.size(0)}, at::kFloat);
    if (!ctx.is_cuda())
        return cross_entropy_of_slice_cpu(ctx, logits_CV, targets_C, first, statistics_S3C, losses_C, gradient,
                                          weight_C);
#ifdef UNSLOTH_CUDA
    kernels::CrossEntropyOfSlice params;
    params.of_slice = cross_entropy_params(ctx, logits_CV, targets_C, losses_C, gradient, weight_C);
    params.first = first;
    params.slices = statistics_S3C.size(0);
    params.statistics = statistics_S3C.const_data_ptr<float>();
    kernels::cross_entropy_of_slice(params, stream_of(ctx));
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
    kernels::accumulate_loss(params, stream_of(ctx));
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
    params.logits = source_of(logits_CV);
    params.best = best_C.mutable_data_ptr<int32_t>();
    kernels::argmax_rows(params, stream_of(ctx));
#endif
}

}  // namespace unsloth::ops
