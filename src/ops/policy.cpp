#include "unsloth/ops/policy.h"

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/policy_token.h"
#include "ops/checks.h"
#include "ops/cpu_rows.h"
#include "unsloth/ops/profiler.h"
#ifdef UNSLOTH_CUDA
#include "kernels/policy.h"
#include "ops/kernel_arguments.h"
#endif

namespace unsloth::ops {
namespace {

static_assert(token_counts == kernels::policy_token_counts && token_chosen == kernels::policy_token_chosen);

struct RowWeights {
    double loss = 0, entropy = 0;
};

/// A row of softmax(logits / temperature), in fp64.
class CpuPolicyRow {
  public:
    CpuPolicyRow(const float* logits, int64_t columns, double temperature) : log_p_(static_cast<std::size_t>(columns)) {
        double highest = std::numeric_limits<double>::lowest(), sum = 0;
        for (int64_t c = 0; c < columns; ++c) {
            log_p_[static_cast<std::size_t>(c)] = static_cast<double>(logits[c]) / temperature;
            highest = std::max(highest, log_p_[static_cast<std::size_t>(c)]);
        }
        for (const double value : log_p_) sum += std::exp(value - highest);
        const double log_sum = highest + std::log(sum);
        for (double& value : log_p_) {
            value -= log_sum;
            const double p = std::exp(value);
            if (p > 0) entropy_ -= p * value;
        }
    }
    double log_p(int32_t id) const { return log_p_[static_cast<std::size_t>(id)]; }
    double entropy() const { return entropy_; }
    void gradient(int32_t target, const RowWeights& weights, float* out) const {
        for (std::size_t c = 0; c < log_p_.size(); ++c) {
            const double p = std::exp(log_p_[c]);
            double value = weights.loss * (static_cast<int32_t>(c) == target ? p - 1 : p);
            if (p > 0) value -= weights.entropy * p * (log_p_[c] + entropy_);
            out[c] = static_cast<float>(value);
        }
    }

  private:
    std::vector<double> log_p_;
    double entropy_ = 0;
};

void token_policy_cpu(const Context& ctx, const TokenPolicy& args) {
    const cpu::Rows rows(args.logits_CV);
    const int64_t columns = rows.columns();
    const int32_t* const targets = args.targets_C.const_data_ptr<int32_t>();
    const float* const weights = args.weight_C.defined() ? args.weight_C.const_data_ptr<float>() : nullptr;
    const float* const of_entropies =
        args.entropy_weight_C.defined() ? args.entropy_weight_C.const_data_ptr<float>() : nullptr;
    const double scale = args.gradient ? static_cast<double>(ctx.scalars->inv_loss_divisor) *
                                             static_cast<double>(ctx.scalars->loss_scale) / args.temperature
                                       : 0.0;
    at::parallel_for(0, rows.rows(), cpu::grain_size(16 * columns), [&](int64_t begin, int64_t end) {
        std::vector<float> scratch(static_cast<std::size_t>(columns)), gradient(scratch.size());
        for (int64_t row = begin; row < end; ++row) {
            const int32_t target = targets[row];
            UNSLOTH_CHECK(target >= 0 && target < columns, "target ", target, " of row ", row,
                          " is outside the vocabulary of ", columns);
            const CpuPolicyRow policy(rows.read(row, scratch.data()), columns, args.temperature);
            args.losses_C.mutable_data_ptr<float>()[row] = static_cast<float>(-policy.log_p(target));
            args.entropies_C.mutable_data_ptr<float>()[row] = static_cast<float>(policy.entropy());
            if (!args.gradient) continue;
            policy.gradient(target,
                            {scale * (weights == nullptr ? 1.0 : static_cast<double>(weights[row])),
                             of_entropies == nullptr ? 0.0 : scale * static_cast<double>(of_entropies[row])},
                            gradient.data());
            rows.write(row, gradient.data());
        }
    });
}

/// A segment's tokens.
class CpuCompletion {
  public:
    CpuCompletion(const PolicyLoss& args, int64_t segment)
        : args_(args),
          begin_(args.starts_S1.const_data_ptr<int32_t>()[segment]),
          end_(args.starts_S1.const_data_ptr<int32_t>()[segment + 1]),
          advantage_(static_cast<double>(args.advantages_S.const_data_ptr<float>()[segment])) {}

    double loss() const {
        spec::PolicySums sums;
        for (int32_t i = begin_; i < end_; ++i)
            if (counts(i)) spec::add_token(args_.rule, token(i), sums);
        const spec::PolicyRow row = spec::row_of(args_.rule, args_.divisors, sums, advantage_);
        double total = spec::empty_row_loss(args_.rule, row);
        for (int32_t i = begin_; i < end_; ++i) total += weigh(row, i);
        return total;
    }

  private:
    double weigh(const spec::PolicyRow& row, int32_t i) const {
        double loss = 0;
        float weight = 0, entropy_weight = 0;
        if (counts(i)) {
            const spec::PolicyToken one = token(i);
            const spec::PolicyTokenLoss of_token = spec::token_loss(args_.rule, row, one);
            weight = static_cast<float>(-of_token.by_logp);
            loss = of_token.loss;
            if (one.chosen && args_.entropy_weight != 0) {
                entropy_weight = static_cast<float>(args_.entropy_weight);
                loss += args_.entropy_weight * static_cast<double>(args_.entropies_n.const_data_ptr<float>()[i]);
            }
        }
        args_.weight_n.mutable_data_ptr<float>()[i] = weight;
        if (args_.entropy_weight_n.defined()) args_.entropy_weight_n.mutable_data_ptr<float>()[i] = entropy_weight;
        return loss;
    }
    bool counts(int32_t i) const { return (args_.flags_n.const_data_ptr<int32_t>()[i] & token_counts) != 0; }
    spec::PolicyToken token(int32_t i) const {
        const auto value = [i](const at::Tensor& of_n) { return static_cast<double>(of_n.const_data_ptr<float>()[i]); };
        return kernels::policy_token(value(args_.losses_n), value(args_.old_n),
                                     args_.rule.beta != 0 ? value(args_.reference_n) : 0.0, value(args_.sampler_n),
                                     args_.flags_n.const_data_ptr<int32_t>()[i]);
    }

    const PolicyLoss& args_;
    int32_t begin_, end_;
    double advantage_;
};

#ifdef UNSLOTH_CUDA
kernels::PolicyLoss parameters_of(const PolicyLoss& args) {
    return {
        .rule = args.rule,
        .divisors = args.divisors,
        .entropy_weight = args.entropy_weight,
        .segments = args.advantages_S.numel(),
        .losses = args.losses_n.const_data_ptr<float>(),
        .entropies = args.entropies_n.const_data_ptr<float>(),
        .starts = args.starts_S1.const_data_ptr<int32_t>(),
        .advantages = args.advantages_S.const_data_ptr<float>(),
        .flags = args.flags_n.const_data_ptr<int32_t>(),
        .old_logp = args.old_n.const_data_ptr<float>(),
        .reference = args.reference_n.const_data_ptr<float>(),
        .sampler = args.sampler_n.const_data_ptr<float>(),
        .segment_losses = args.segment_losses_S.mutable_data_ptr<float>(),
        .weights = args.weight_n.mutable_data_ptr<float>(),
        .entropy_weights = args.entropy_weight_n.defined() ? args.entropy_weight_n.mutable_data_ptr<float>() : nullptr};
}
#endif

}  // namespace

void token_policy(Context& ctx, const TokenPolicy& args) {
    const Region region(ctx, "token_policy");
    UNSLOTH_CHECK(args.logits_CV.dim() == 2 && args.temperature > 0, "logits of two dimensions and a temperature");
    const int64_t rows = args.logits_CV.size(0);
    check_compute_tensor(ctx, "logits", args.logits_CV, args.logits_CV.sizes());
    check_contiguous(ctx, "targets", args.targets_C, {rows}, at::kInt);
    check_contiguous(ctx, "losses", args.losses_C, {rows}, at::kFloat);
    check_contiguous(ctx, "entropies", args.entropies_C, {rows}, at::kFloat);
    if (args.weight_C.defined()) check_contiguous(ctx, "weight", args.weight_C, {rows}, at::kFloat);
    if (args.entropy_weight_C.defined())
        check_contiguous(ctx, "entropy weight", args.entropy_weight_C, {rows}, at::kFloat);
    UNSLOTH_CHECK(!args.gradient || ctx.scalars != nullptr, "the gradient's scale is read from ctx.scalars");
    if (!ctx.is_cuda()) return token_policy_cpu(ctx, args);
#ifdef UNSLOTH_CUDA
    kernels::token_policy(
        {.rows = rows,
         .columns = args.logits_CV.size(1),
         .type = dtype_of(args.logits_CV),
         .inverse_temperature = static_cast<float>(1 / args.temperature),
         .logits = target_of(args.logits_CV),
         .targets = args.targets_C.const_data_ptr<int32_t>(),
         .losses = args.losses_C.mutable_data_ptr<float>(),
         .entropies = args.entropies_C.mutable_data_ptr<float>(),
         .weights = args.weight_C.defined() ? args.weight_C.const_data_ptr<float>() : nullptr,
         .entropy_weights = args.entropy_weight_C.defined() ? args.entropy_weight_C.const_data_ptr<float>() : nullptr,
         .scalars = ctx.scalars,
         .gradient = args.gradient},
        stream_of(ctx));
#endif
}

void policy_loss(Context& ctx, const PolicyLoss& args) {
    const Region region(ctx, "policy_loss");
    const int64_t n = args.losses_n.numel(), segments = args.advantages_S.numel();
    for (const auto& [name, of_n] : {std::pair{"losses", &args.losses_n},
                                     {"entropies", &args.entropies_n},
                                     {"old", &args.old_n},
                                     {"reference", &args.reference_n},
                                     {"sampler", &args.sampler_n},
                                     {"weight", &args.weight_n}})
        check_contiguous(ctx, name, *of_n, {n}, at::kFloat);
    check_contiguous(ctx, "flags", args.flags_n, {n}, at::kInt);
    check_contiguous(ctx, "starts", args.starts_S1, {segments + 1}, at::kInt);
    check_contiguous(ctx, "advantages", args.advantages_S, {segments}, at::kFloat);
    check_contiguous(ctx, "segment losses", args.segment_losses_S, {segments}, at::kFloat);
    UNSLOTH_CHECK(args.entropy_weight == 0 || args.entropy_weight_n.defined(), "a bonus needs a place for its weights");
    if (!ctx.is_cuda()) {
        for (int64_t s = 0; s < segments; ++s)
            args.segment_losses_S.mutable_data_ptr<float>()[s] = static_cast<float>(CpuCompletion(args, s).loss());
        return;
    }
#ifdef UNSLOTH_CUDA
    kernels::policy_loss(parameters_of(args), stream_of(ctx));
#endif
}

}  // namespace unsloth::ops
