#include "unsloth/ops/distill.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "ops/checks.h"
#include "ops/cpu_rows.h"
#include "unsloth/ops/profiler.h"
#ifdef UNSLOTH_CUDA
#include "kernels/distill.h"
#include "ops/kernel_arguments.h"
#endif

namespace unsloth::ops {
namespace {

/// log of the sum of exp(values / temperature); -inf where all are.
double log_sum_exp(const float* values, int64_t count, double temperature) {
    double highest = std::numeric_limits<double>::lowest();
    for (int64_t i = 0; i < count; ++i) highest = std::max(highest, static_cast<double>(values[i]) / temperature);
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += std::exp(static_cast<double>(values[i]) / temperature - highest);
    return highest + std::log(sum);
}

/// A row's classes in the order of the teacher's words.
struct Classes {
    std::vector<double> log_p, log_q, slope;

    double divergence(const spec::DistillRule& rule) {
        double loss = 0, centre = 0;
        for (std::size_t c = 0; c < log_p.size(); ++c) {
            const auto term = spec::divergence_term(rule.type, rule.beta, log_p[c], log_q[c]);
            loss += term.loss;
            centre += term.centre;
        }
        slope.resize(log_p.size());
        for (std::size_t c = 0; c < log_p.size(); ++c)
            slope[c] = spec::divergence_slope(rule.type, rule.beta, log_p[c], log_q[c], centre);
        return loss;
    }
};

/// The derivative of the divergence by each of the student's logits / T, and the divergence.
class CpuTeacher {
  public:
    CpuTeacher(const DistillLoss& args, int64_t columns) : rule_(args.rule), columns_(columns) {
        if (args.teacher.logits_CU.defined()) {
            logits_.emplace(args.teacher.logits_CU);
            common_ = std::min(columns, logits_->columns());
            return;
        }
        k_ = args.teacher.ids_Ck.size(1);
        ids_ = args.teacher.ids_Ck.const_data_ptr<int32_t>();
        logp_ = args.teacher.logp_Cl.const_data_ptr<float>();
    }

    double compare(int64_t row, const float* student, std::vector<double>& slope_V) const {
        slope_V.assign(static_cast<std::size_t>(columns_), 0.0);
        return logits_ ? compare_all(row, student, slope_V) : compare_named(row, student, slope_V);
    }

  private:
    double compare_all(int64_t row, const float* student, std::vector<double>& slope_V) const {
        std::vector<float> scratch(static_cast<std::size_t>(logits_->columns()));
        const float* const teacher = logits_->read(row, scratch.data());
        const double T = rule_.temperature, of_teacher = log_sum_exp(teacher, common_, T),
                     of_student = log_sum_exp(student, common_, T);
        Classes classes;
        for (int64_t c = 0; c < common_; ++c) {
            classes.log_p.push_back(static_cast<double>(teacher[c]) / T - of_teacher);
            classes.log_q.push_back(static_cast<double>(student[c]) / T - of_student);
        }
        const double divergence = classes.divergence(rule_);
        std::copy(classes.slope.begin(), classes.slope.end(), slope_V.begin());
        return divergence;
    }

    double compare_named(int64_t row, const float* student, std::vector<double>& slope_V) const {
        const int32_t* const ids = ids_ + row * k_;
        const float* const logp = logp_ + row * (k_ + 1);
        std::vector<float> others(student, student + columns_);
        for (int64_t i = 0; i < k_; ++i) {
            UNSLOTH_CHECK(ids[i] >= 0 && ids[i] < columns_, "the teacher's token ", ids[i], " of row ", row,
                          " is outside the vocabulary of ", columns_);
            others[static_cast<std::size_t>(ids[i])] = -std::numeric_limits<float>::infinity();
        }
        const double T = rule_.temperature, all = log_sum_exp(student, columns_, T),
                     rest = log_sum_exp(others.data(), columns_, T);
        Classes classes;
        for (int64_t i = 0; i <= k_; ++i) {
            classes.log_p.push_back(static_cast<double>(logp[i]));
            classes.log_q.push_back((i < k_ ? static_cast<double>(student[ids[i]]) / T : rest) - all);
        }
        const double divergence = classes.divergence(rule_);
        if (std::isfinite(rest))
            for (int64_t c = 0; c < columns_; ++c)
                slope_V[static_cast<std::size_t>(c)] =
                    classes.slope.back() *
                    std::exp(static_cast<double>(others[static_cast<std::size_t>(c)]) / T - rest);
        for (int64_t i = 0; i < k_; ++i)
            slope_V[static_cast<std::size_t>(ids[i])] = classes.slope[static_cast<std::size_t>(i)];
        return divergence;
    }

    const spec::DistillRule& rule_;
    int64_t columns_, common_ = 0, k_ = 0;
    std::optional<cpu::Rows> logits_;
    const int32_t* ids_ = nullptr;
    const float* logp_ = nullptr;
};

void distill_loss_cpu(const Context& ctx, const DistillLoss& args) {
    const cpu::Rows rows(args.logits_CV);
    const int64_t columns = rows.columns();
    const CpuTeacher teacher(args, columns);
    const int32_t* const targets = args.targets_C.const_data_ptr<int32_t>();
    const double scale = args.gradient ? static_cast<double>(ctx.scalars->inv_loss_divisor) *
                                             static_cast<double>(ctx.scalars->loss_scale)
                                       : 0.0;
    const double labels = scale * (1 - args.rule.alpha), divergence = scale * args.rule.alpha * args.rule.temperature;
    at::parallel_for(0, rows.rows(), 1, [&](int64_t begin, int64_t end) {
        std::vector<float> scratch(static_cast<std::size_t>(columns));
        std::vector<double> slope;
        for (int64_t row = begin; row < end; ++row) {
            const int32_t target = targets[row];
            UNSLOTH_CHECK(target >= 0 && target < columns, "target ", target, " of row ", row,
                          " is outside the vocabulary of ", columns);
            const float* const logits = rows.read(row, scratch.data());
            const double all = log_sum_exp(logits, columns, 1);
            args.losses_C.mutable_data_ptr<float>()[row] =
                static_cast<float>(all - static_cast<double>(logits[target]));
            args.divergence_C.mutable_data_ptr<float>()[row] = static_cast<float>(teacher.compare(row, logits, slope));
            if (!args.gradient) continue;
            std::vector<float> gradient(static_cast<std::size_t>(columns));
            for (int64_t c = 0; c < columns; ++c)
                gradient[static_cast<std::size_t>(c)] =
                    static_cast<float>(labels * (std::exp(static_cast<double>(logits[c]) - all) - (c == target)) +
                                       divergence * slope[static_cast<std::size_t>(c)]);
            rows.write(row, gradient.data());
        }
    });
}

}  // namespace

void distill_loss(Context& ctx, const DistillLoss& args) {
    const Region region(ctx, "distill_loss");
    const TeacherRows& teacher = args.teacher;
    const int64_t rows = args.logits_CV.size(0), columns = args.logits_CV.size(1);
    check_compute_tensor(ctx, "logits", args.logits_CV, {rows, columns});
    check_contiguous(ctx, "targets", args.targets_C, {rows}, at::kInt);
    check_contiguous(ctx, "losses", args.losses_C, {rows}, at::kFloat);
    check_contiguous(ctx, "divergence", args.divergence_C, {rows}, at::kFloat);
    const bool dense = teacher.logits_CU.defined();
    UNSLOTH_CHECK(dense != teacher.ids_Ck.defined(), "a teacher gives logits, or tokens");
    if (dense) {
        check_tensor(ctx, "teacher", teacher.logits_CU, {rows, teacher.logits_CU.size(1)},
                     args.logits_CV.scalar_type());
    } else {
        const int64_t k = teacher.ids_Ck.size(1);
        UNSLOTH_CHECK(k > 0 && k <= most_teacher_tokens, k, " tokens of a teacher");
        check_contiguous(ctx, "teacher's ids", teacher.ids_Ck, {rows, k}, at::kInt);
        check_contiguous(ctx, "teacher's log p", teacher.logp_Cl, {rows, k + 1}, at::kFloat);
    }
    UNSLOTH_CHECK(!args.gradient || ctx.scalars != nullptr, "the gradient's scale is read from ctx.scalars");
    if (!ctx.is_cuda()) return distill_loss_cpu(ctx, args);
#ifdef UNSLOTH_CUDA
    kernels::DistillLoss params;
    params.rule = args.rule;
    params.rows = rows;
    params.columns = columns;
    params.type = dtype_of(args.logits_CV);
    params.logits = {args.logits_CV.mutable_data_ptr(), args.logits_CV.stride(0)};
    params.targets = args.targets_C.const_data_ptr<int32_t>();
    if (dense) {
        params.teacher = {teacher.logits_CU.const_data_ptr(), teacher.logits_CU.stride(0)};
        params.teacher_columns = teacher.logits_CU.size(1);
    } else {
        params.k = teacher.ids_Ck.size(1);
        params.ids = teacher.ids_Ck.const_data_ptr<int32_t>();
        params.logp = teacher.logp_Cl.const_data_ptr<float>();
    }
    params.losses = args.losses_C.mutable_data_ptr<float>();
    params.divergence = args.divergence_C.mutable_data_ptr<float>();
    params.scalars = ctx.scalars;
    params.gradient = args.gradient;
    kernels::distill_loss(params, stream_of(ctx));
#endif
}

void accumulate_distilled(Context& ctx, const spec::DistillRule& rule, const at::Tensor& losses_n,
                          const at::Tensor& divergence_n, const at::Tensor& measures_M, Site site) {
    const Region region(ctx, "accumulate_distilled");
    const int64_t n = losses_n.numel();
    check_contiguous(ctx, "losses", losses_n, {n}, at::kFloat);
    check_contiguous(ctx, "divergence", divergence_n, {n}, at::kFloat);
    check_contiguous(ctx, "measures", measures_M, {distill_measures}, at::kFloat);
    UNSLOTH_CHECK(ctx.scalars != nullptr && ctx.outcome != nullptr,
                  "the loss is accumulated from ctx.scalars to ctx.outcome");
    const double by_divergence = rule.alpha * rule.temperature * rule.temperature, by_losses = 1 - rule.alpha;
    if (!ctx.is_cuda()) {
        double losses = 0, divergence = 0;
        for (int64_t i = 0; i < n; ++i) losses += static_cast<double>(losses_n.const_data_ptr<float>()[i]);
        for (int64_t i = 0; i < n; ++i) divergence += static_cast<double>(divergence_n.const_data_ptr<float>()[i]);
        const double total = by_losses * losses + by_divergence * divergence;
        ctx.outcome->loss = static_cast<float>(static_cast<double>(ctx.outcome->loss) +
                                               total * static_cast<double>(ctx.scalars->inv_loss_divisor));
        if (site.code != spec::all_finite && !std::isfinite(total))
            cpu::report_site(&ctx.outcome->first_bad_site, site.code);
        float* const measures = measures_M.mutable_data_ptr<float>();
        measures[sum_of_losses] += static_cast<float>(losses);
        measures[sum_of_divergences] += static_cast<float>(divergence);
        measures[distilled_targets] += static_cast<float>(n);
        return;
    }
#ifdef UNSLOTH_CUDA
    kernels::accumulate_distilled({.by_losses = by_losses,
                                   .by_divergence = by_divergence,
                                   .count = n,
                                   .losses = losses_n.const_data_ptr<float>(),
                                   .divergence = divergence_n.const_data_ptr<float>(),
                                   .measures = measures_M.mutable_data_ptr<float>(),
                                   .scalars = ctx.scalars,
                                   .outcome = ctx.outcome,
                                   .site = site.code},
                                  stream_of(ctx));
#endif
}

}  // namespace unsloth::ops
