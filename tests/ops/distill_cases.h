// Cases of distillation: every divergence against all logits of a teacher and against its likeliest tokens, with
// autograd in fp64 as the oracle.
#pragma once

#include <algorithm>

#include "ops/op_cases.h"
#include "unsloth/ops/distill.h"

namespace unsloth::testing {

inline const char* name_of(spec::DivergenceType type) {
    constexpr const char* names[] = {"forward_kl", "reverse_kl", "jsd"};
    return names[static_cast<int>(type)];
}

/// Of classes: log-probabilities under teacher and student, [C, classes].
inline at::Tensor divergence_oracle(const spec::DistillRule& rule, const at::Tensor& log_p, const at::Tensor& log_q) {
    const auto kl = [](const at::Tensor& log_a, const at::Tensor& log_b) {
        return (log_a.exp() * (log_a - log_b)).sum(1);
    };
    switch (rule.type) {
        case spec::DivergenceType::forward_kl:
            return kl(log_p, log_q);
        case spec::DivergenceType::reverse_kl:
            return kl(log_q, log_p);
        case spec::DivergenceType::jsd: {
            const at::Tensor log_m = (rule.beta * log_p.exp() + (1 - rule.beta) * log_q.exp()).log();
            return rule.beta * kl(log_p, log_m) + (1 - rule.beta) * kl(log_q, log_m);
        }
    }
    return {};
}

struct DistillShape {
    int64_t rows, student, teacher;  ///< the last two: vocabularies
    int64_t k = 0;                   ///< 0: all logits
};

inline OpCase distill_case(const spec::DistillRule& rule, const DistillShape& shape, at::ScalarType dtype,
                           Layout layout, bool gradient) {
    const auto [rows, columns, teacher_columns, k] = shape;
    OpCase c;
    c.name = "distill_loss " + case_name(name_of(rule.type), rows, columns, teacher_columns, k, c10::toString(dtype),
                                         name_of(layout), gradient ? "gradient" : "");
    c.scalars = test_scalars();
    const at::Tensor teacher = at::randn({rows, teacher_columns}) * 3;
    c.args = {{"logits", slice_of(at::randn({rows, columns}) * 3, dtype, layout), gradient ? Role::both : Role::input},
              {"targets", at::randint(0, columns, {rows}, at::kInt)},
              {"losses", at::full({rows}, NAN), Role::output},
              {"divergence", at::full({rows}, NAN), Role::output}};
    if (rows > 1) c.args[1].value[rows - 1] = columns - 1;  // the last column may lie in a tail
    if (k == 0) {
        c.args.push_back({"teacher", slice_of(teacher, dtype, layout)});
    } else {
        const at::Tensor log_p = at::log_softmax(teacher.to(at::kDouble) / rule.temperature, 1);
        const auto [highest, ids] = log_p.topk(k, 1);
        const at::Tensor others = log_p.scatter(1, ids, -INFINITY).logsumexp(1, true);
        c.args.push_back({"ids", ids.to(at::kInt).contiguous()});
        c.args.push_back({"log p", at::cat({highest, others}, 1).to(at::kFloat).contiguous()});
        if (rows > 1) c.args[1].value[0] = ids[0][0].item<int32_t>();  // a target that the teacher names
    }
    // Divergences, and gradients of classes whose ratio is near the mean, are of terms of order 1 that cancel.
    c.tolerance = tolerance_of(dtype);
    c.tolerance->floor = 2e-6;
    const double scale = double(c.scalars.inv_loss_divisor) * c.scalars.loss_scale;
    c.run = [=](ops::Context& ctx, const Tensors& a) {
        const ops::TeacherRows words =
            k == 0 ? ops::TeacherRows{.logits_CU = a[4]} : ops::TeacherRows{.ids_Ck = a[4], .logp_Cl = a[5]};
        ops::distill_loss(ctx, {.rule = rule,
                                .logits_CV = a[0],
                                .targets_C = a[1],
                                .teacher = words,
                                .losses_C = a[2],
                                .divergence_C = a[3],
                                .gradient = gradient});
    };
    c.expected = [=](const Tensors& a) {
        const at::Tensor leaf = a[0].detach().clone().requires_grad_();
        const at::Tensor losses = -at::log_softmax(leaf, 1).gather(1, a[1].to(at::kLong).unsqueeze(1)).squeeze(1);
        at::Tensor divergence;
        if (k == 0) {
            const int64_t common = std::min(columns, teacher_columns);
            divergence = divergence_oracle(rule, at::log_softmax(a[4].narrow(1, 0, common) / rule.temperature, 1),
                                           at::log_softmax(leaf.narrow(1, 0, common) / rule.temperature, 1));
        } else {
            const at::Tensor ids = a[4].to(at::kLong), log_q = at::log_softmax(leaf / rule.temperature, 1);
            const at::Tensor others = log_q.scatter(1, ids, -INFINITY).logsumexp(1, true);
            divergence = divergence_oracle(rule, a[5], at::cat({log_q.gather(1, ids), others}, 1));
        }
        const at::Tensor loss =
            (1 - rule.alpha) * losses + rule.alpha * rule.temperature * rule.temperature * divergence;
        loss.sum().backward();
        Tensors out;
        if (gradient) out.push_back(leaf.grad() * scale);
        out.push_back(losses.detach());
        out.push_back(divergence.detach());
        return out;
    };
    return c;
}

inline OpCase accumulate_distilled_case(int64_t count) {
    OpCase c;
    c.name = "accumulate_distilled " + case_name(count);
    c.scalars = test_scalars();
    c.outcome_before.loss = 0.5F;
    const spec::DistillRule rule{.temperature = 2, .alpha = 0.3};
    const at::Tensor losses = at::rand({count}) * 5, divergence = at::rand({count});
    c.args = {{"losses", losses}, {"divergence", divergence}, {"measures", at::ones({3}), Role::both}};
    c.run = [=](ops::Context& ctx, const Tensors& a) { ops::accumulate_distilled(ctx, rule, a[0], a[1], a[2], {17}); };
    c.expected = [=](const Tensors& a) {
        return Tensors{a[2] + at::stack({a[0].sum(), a[1].sum(), at::full({}, double(count), at::kDouble)})};
    };
    c.expected_loss = c.outcome_before.loss + (0.7 * losses.to(at::kDouble).sum().item<double>() +
                                               0.3 * 4 * divergence.to(at::kDouble).sum().item<double>()) *
                                                  double(c.scalars.inv_loss_divisor);
    return c;
}

inline std::vector<OpCase> distill_cases(uint64_t seed) {
    at::manual_seed(seed);
    std::vector<OpCase> cases;
    using spec::DivergenceType;
    for (const auto type : {DivergenceType::forward_kl, DivergenceType::reverse_kl, DivergenceType::jsd}) {
        const spec::DistillRule rule{.type = type, .beta = 0.3, .temperature = 1.7, .alpha = 0.6},
            all{.type = type, .alpha = 1};
        for (const at::ScalarType dtype : compute_dtypes)
            for (const Layout layout : all_layouts)
                for (const int64_t k : {0, 5}) {
                    cases.push_back(distill_case(rule, {3, 37, 37, k}, dtype, layout, true));
                    cases.push_back(distill_case(rule, {2, 1000, 1000, k}, dtype, layout, true));
                }
        for (const bool gradient : {false, true})
            for (const int64_t k : {0, 1, 64, 1500}) {
                cases.push_back(distill_case(rule, {3, 4099, 4099, k}, at::kFloat, Layout::packed, gradient));
                cases.push_back(distill_case(all, {3, 4099, 4099, k}, at::kBFloat16, Layout::packed, gradient));
            }
        // Matrices padded to other sizes: ids that one of them lacks are nobody's.
        cases.push_back(distill_case(rule, {3, 1000, 1032, 0}, at::kFloat, Layout::packed, true));
        cases.push_back(distill_case(rule, {3, 1032, 1000, 0}, at::kFloat, Layout::packed, true));
    }
    for (const int64_t count : {1, 1000, 5003}) cases.push_back(accumulate_distilled_case(count));
    return cases;
}

}  // namespace unsloth::testing
