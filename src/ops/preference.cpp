#include "unsloth/ops/preference.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/preference_row.h"
#include "ops/checks.h"
#include "ops/cpu_rows.h"
#include "unsloth/ops/profiler.h"
#ifdef UNSLOTH_CUDA
#include "kernels/preference.h"
#include "ops/kernel_arguments.h"
#endif

namespace unsloth::ops {
namespace {

static_assert(kernels::row_measures == preference_measures && reward_chosen == 0 && reward_margin == 3 &&
                  logp_rejected == 5 && rejected_rows == 7 && chosen_tokens == 9 && divergence_rows == 11,
              "kernels/preference_row.h spells the measures as numbers");

void preference_loss_cpu(const Context& ctx, const PreferenceLoss& args, int64_t rows) {
    const double* logp = args.logp_S.const_data_ptr<double>();
    const int32_t* starts = args.starts_S1.const_data_ptr<int32_t>();
    const int32_t* begins = args.answers_S.const_data_ptr<int32_t>();
    const double* prompts = args.prompt_logp_S.defined() ? args.prompt_logp_S.const_data_ptr<double>() : nullptr;
    const float* reference = args.reference_S.const_data_ptr<float>();
    double mean_divergence = 0, loss = 0;
    if (args.divergence_2.defined()) {
        const float* sums = args.divergence_2.const_data_ptr<float>();
        mean_divergence = std::max(0.0, static_cast<double>(sums[0]) / static_cast<double>(sums[1]));
    }
    std::array<double, preference_measures> measures{};
    for (int64_t row = 0; row < rows; ++row) {
        std::array<spec::AnswerLogProb, 2> answers;
        for (int64_t s = 2 * row; s < 2 * row + 2; ++s)
            answers[static_cast<std::size_t>(s % 2)] = {logp[s], static_cast<double>(reference[s]),
                                                        static_cast<double>(starts[s + 1] - begins[s])};
        spec::AnswerLogProb prompt{.tokens = static_cast<double>(begins[2 * row] - starts[2 * row])};
        if (prompts != nullptr) prompt.policy = prompts[2 * row];
        const bool desirable = args.desirable_P.defined() && args.desirable_P.const_data_ptr<int32_t>()[row] != 0;
        const kernels::PreferenceRow result = kernels::preference_row(args.rule, answers.data(), prompt, desirable,
                                                                      mean_divergence, args.chosen_loss_weight);
        loss += result.loss;
        for (std::size_t m = 0; m < measures.size(); ++m) measures[m] += result.measures[m];
        for (int64_t s = 2 * row; s < 2 * row + 2; ++s) {
            args.slope_S.mutable_data_ptr<double>()[s] = result.slope[s % 2];
            float* const weight = args.weight_n.mutable_data_ptr<float>();
            std::fill(weight + starts[s], weight + begins[s], static_cast<float>(args.chosen_loss_weight));
            std::fill(weight + begins[s], weight + starts[s + 1], static_cast<float>(-result.slope[s % 2]));
        }
    }
    ctx.outcome->loss = static_cast<float>(ctx.outcome->loss + loss * ctx.scalars->inv_loss_divisor);
    if (args.site.code != spec::all_finite && !std::isfinite(loss))
        cpu::report_site(&ctx.outcome->first_bad_site, args.site.code);
    for (std::size_t m = 0; m < measures.size(); ++m)
        args.measures_M.mutable_data_ptr<float>()[m] += static_cast<float>(measures[m]);
}

}  // namespace

void sequence_log_probs(Context& ctx, const at::Tensor& losses_n, const at::Tensor& begins_S, const at::Tensor& ends_S,
                        const at::Tensor& logp_S) {
    const Region region(ctx, "sequence_log_probs");
    const int64_t sequences = begins_S.numel();
    check_contiguous(ctx, "losses", losses_n, {losses_n.numel()}, at::kFloat);
    check_contiguous(ctx, "begins", begins_S, {sequences}, at::kInt);
    check_contiguous(ctx, "ends", ends_S, {sequences}, at::kInt);
    check_contiguous(ctx, "logp", logp_S, {sequences}, at::kDouble);
    if (!ctx.is_cuda()) {
        const float* losses = losses_n.const_data_ptr<float>();
        const int32_t *begins = begins_S.const_data_ptr<int32_t>(), *ends = ends_S.const_data_ptr<int32_t>();
        for (int64_t s = 0; s < sequences; ++s) {
            double sum = 0;
            for (int32_t i = begins[s]; i < ends[s]; ++i) sum += losses[i];
            logp_S.mutable_data_ptr<double>()[s] = -sum;
        }
        return;
    }
#ifdef UNSLOTH_CUDA
    kernels::sequence_log_probs({sequences, losses_n.const_data_ptr<float>(), begins_S.const_data_ptr<int32_t>(),
                                 ends_S.const_data_ptr<int32_t>(), logp_S.mutable_data_ptr<double>()},
                                stream_of(ctx));
#endif
}

void foreign_divergence(Context& ctx, const at::Tensor& logp_S, const at::Tensor& reference_S,
                        const at::Tensor& sums_2) {
    const int64_t rows = logp_S.numel() / 2;
    check_contiguous(ctx, "logp", logp_S, {2 * rows}, at::kDouble);
    check_contiguous(ctx, "reference", reference_S, {2 * rows}, at::kFloat);
    check_contiguous(ctx, "sums", sums_2, {2}, at::kFloat);
    if (!ctx.is_cuda()) {
        double sum = 0;
        for (int64_t row = 0; row < rows; ++row)
            sum += logp_S.const_data_ptr<double>()[2 * row + 1] -
                   static_cast<double>(reference_S.const_data_ptr<float>()[2 * row + 1]);
        sums_2.mutable_data_ptr<float>()[0] = static_cast<float>(sum);
        sums_2.mutable_data_ptr<float>()[1] = static_cast<float>(rows);
        return;
    }
#ifdef UNSLOTH_CUDA
    kernels::foreign_divergence(
        {rows, logp_S.const_data_ptr<double>(), reference_S.const_data_ptr<float>(), sums_2.mutable_data_ptr<float>()},
        stream_of(ctx));
#endif
}

void preference_loss(Context& ctx, const PreferenceLoss& args) {
    const Region region(ctx, "preference_loss");
    const int64_t rows = args.logp_S.numel() / 2;
    const bool kto = args.rule.type == spec::PreferenceLossType::kto;
    check_contiguous(ctx, "logp", args.logp_S, {2 * rows}, at::kDouble);
    check_contiguous(ctx, "slope", args.slope_S, {2 * rows}, at::kDouble);
    check_contiguous(ctx, "starts", args.starts_S1, {2 * rows + 1}, at::kInt);
    check_contiguous(ctx, "answers", args.answers_S, {2 * rows}, at::kInt);
    if (args.prompt_logp_S.defined()) check_contiguous(ctx, "prompt logp", args.prompt_logp_S, {2 * rows}, at::kDouble);
    check_contiguous(ctx, "reference", args.reference_S, {2 * rows}, at::kFloat);
    check_contiguous(ctx, "weight", args.weight_n, {args.weight_n.numel()}, at::kFloat);
    check_contiguous(ctx, "measures", args.measures_M, {preference_measures}, at::kFloat);
    UNSLOTH_CHECK(kto == args.desirable_P.defined() && kto == args.divergence_2.defined(),
                  "verdicts and a divergence are kto's");
    if (kto) {
        check_contiguous(ctx, "desirable", args.desirable_P, {rows}, at::kInt);
        check_contiguous(ctx, "divergence", args.divergence_2, {2}, at::kFloat);
    }
    UNSLOTH_CHECK(ctx.scalars != nullptr && ctx.outcome != nullptr,
                  "the loss is accumulated from ctx.scalars to ctx.outcome");
    if (!ctx.is_cuda()) return preference_loss_cpu(ctx, args, rows);
#ifdef UNSLOTH_CUDA
    kernels::preference_loss(
        {.rule = args.rule,
         .rows = rows,
         .logp = args.logp_S.const_data_ptr<double>(),
         .starts = args.starts_S1.const_data_ptr<int32_t>(),
         .answers = args.answers_S.const_data_ptr<int32_t>(),
         .prompt_logp = args.prompt_logp_S.defined() ? args.prompt_logp_S.const_data_ptr<double>() : nullptr,
         .reference = args.reference_S.const_data_ptr<float>(),
         .desirable = kto ? args.desirable_P.const_data_ptr<int32_t>() : nullptr,
         .divergence = kto ? args.divergence_2.const_data_ptr<float>() : nullptr,
         .chosen_loss_weight = args.chosen_loss_weight,
         .slope = args.slope_S.mutable_data_ptr<double>(),
         .weight = args.weight_n.mutable_data_ptr<float>(),
         .measures = args.measures_M.mutable_data_ptr<float>(),
         .scalars = ctx.scalars,
         .outcome = ctx.outcome,
         .site = args.site.code},
        stream_of(ctx));
#endif
}

}  // namespace unsloth::ops
