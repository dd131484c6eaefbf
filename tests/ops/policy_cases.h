// Cases of policy gradients: rows of logits with autograd in fp64 as the oracle, and losses of completions against
// spec/policy_batch.h, which the golden files hold to TRL's numbers.
#pragma once

#include "ops/op_cases.h"
#include "unsloth/ops/policy.h"
#include "unsloth/spec/policy_batch.h"

namespace unsloth::testing {

enum class PolicyGradientCase { none, plain, weighted, bonus };

struct PolicyRows {
    int64_t rows, columns;
    double temperature;
    PolicyGradientCase gradient;
};

inline OpCase token_policy_case(const PolicyRows& shape, at::ScalarType dtype, Layout layout) {
    const auto [rows, columns, temperature, gradient] = shape;
    const bool takes_gradient = gradient != PolicyGradientCase::none;
    const bool weighted = gradient == PolicyGradientCase::weighted || gradient == PolicyGradientCase::bonus;
    const bool bonus = gradient == PolicyGradientCase::bonus;
    OpCase c;
    c.name = "token_policy " +
             case_name(rows, columns, temperature, static_cast<int>(gradient), c10::toString(dtype), name_of(layout));
    c.scalars = test_scalars();
    c.args = {
        {"logits", slice_of(at::randn({rows, columns}) * 3, dtype, layout), takes_gradient ? Role::both : Role::input},
        {"targets", at::randint(0, columns, {rows}, at::kInt)},
        {"losses", at::full({rows}, NAN), Role::output},
        {"entropies", at::full({rows}, NAN), Role::output},
        {"weights", at::randn({rows})},
        {"entropy weights", at::randn({rows})}};
    c.args[1].value[rows - 1] = columns - 1;  // the last column may lie in a tail
    c.run = [=](ops::Context& ctx, const Tensors& a) {
        ops::token_policy(ctx, {.temperature = temperature,
                                .logits_CV = a[0],
                                .targets_C = a[1],
                                .losses_C = a[2],
                                .entropies_C = a[3],
                                .gradient = takes_gradient,
                                .weight_C = weighted ? a[4] : at::Tensor(),
                                .entropy_weight_C = bonus ? a[5] : at::Tensor()});
    };
    const double scale = static_cast<double>(c.scalars.inv_loss_divisor) * static_cast<double>(c.scalars.loss_scale);
    c.expected = [=](const Tensors& a) {
        const at::Tensor leaf = a[0].detach().clone().requires_grad_();
        const at::Tensor log_p = at::log_softmax(leaf / temperature, 1);
        const at::Tensor losses = -log_p.gather(1, a[1].to(at::kLong).unsqueeze(1)).squeeze(1);
        const at::Tensor entropies = -(log_p.exp() * log_p).sum(1);
        at::Tensor total = (weighted ? losses * a[4] : losses).sum();
        if (bonus) total = total + (entropies * a[5]).sum();
        (total * scale).backward();
        Tensors outputs{losses.detach(), entropies.detach()};
        if (takes_gradient) outputs.insert(outputs.begin(), leaf.grad());
        return outputs;
    };
    return c;
}

inline std::vector<OpCase> token_policy_cases(uint64_t seed) {
    using enum PolicyGradientCase;
    at::manual_seed(seed);
    std::vector<OpCase> cases;
    for (const at::ScalarType dtype : compute_dtypes)
        for (const Layout layout : all_layouts) {
            cases.push_back(token_policy_case({3, 37, 0.7, none}, dtype, layout));
            cases.push_back(token_policy_case({5, 1300, 1, plain}, dtype, layout));
            cases.push_back(token_policy_case({4, 515, 1.3, weighted}, dtype, layout));
            cases.push_back(token_policy_case({2, 2049, 0.7, bonus}, dtype, layout));
        }
    return cases;
}

struct PolicyCase {
    const char* name;
    spec::PolicyRule rule;
    double entropy_weight = 0;
};

/// Completions of 1 to `longest` tokens; some rows count for nothing, and some tokens are not chosen.
inline OpCase policy_loss_case(const PolicyCase& of, int64_t rows, int64_t longest) {
    OpCase c;
    c.name = "policy_loss " + case_name(of.name, rows, longest);
    const at::Tensor tokens = at::randint(1, longest + 1, {rows}, at::kInt);
    const at::Tensor starts = at::cat({at::zeros({1}, at::kInt), tokens.cumsum(0).to(at::kInt)});
    const auto n = starts[-1].item<int64_t>();
    const at::Tensor losses = at::rand({n}) * 3;
    const auto near = [&] { return (-losses + at::randn({n}) * 0.3).clamp_max(0); };
    const at::Tensor old = near(), sampler = near(), counted = at::rand({rows}) < 0.8;
    old[0] = NAN;               // the policy's own
    sampler[n / 2] = NAN;       // not known
    sampler[n - 1] = INFINITY;  // none is recorded
    const at::Tensor counts = at::repeat_interleave(counted.to(at::kInt), tokens.to(at::kLong));
    const at::Tensor flags = counts * ops::token_counts + (at::rand({n}) < 0.7).to(at::kInt) * ops::token_chosen;
    spec::PolicyDivisors divisors{.rows = static_cast<double>(rows),
                                  .tokens = static_cast<double>(n),
                                  .generation_tokens = 2.0 * static_cast<double>(n),
                                  .max_completion_length = static_cast<double>(longest),
                                  .accumulation = 2,
                                  .slices = 4};
    c.args = {{"losses", losses},
              {"entropies", at::rand({n}) * 2},
              {"starts", starts},
              {"advantages", at::randn({rows})},
              {"flags", flags},
              {"old", old},
              {"reference", near()},
              {"sampler", sampler},
              {"segment losses", at::full({rows}, NAN), Role::output},
              {"weights", at::full({n}, NAN), Role::output},
              {"entropy weights", at::full({n}, NAN), Role::output}};
    c.run = [=](ops::Context& ctx, const Tensors& a) {
        ops::policy_loss(ctx, {.rule = of.rule,
                               .divisors = divisors,
                               .entropy_weight = of.entropy_weight,
                               .losses_n = a[0],
                               .entropies_n = a[1],
                               .starts_S1 = a[2],
                               .advantages_S = a[3],
                               .flags_n = a[4],
                               .old_n = a[5],
                               .reference_n = a[6],
                               .sampler_n = a[7],
                               .segment_losses_S = a[8],
                               .weight_n = a[9],
                               .entropy_weight_n = a[10]});
    };
    c.expected = [=](const Tensors& a) {
        const at::Tensor of_rows = at::zeros({rows}, at::kDouble), by_loss = at::zeros({n}, at::kDouble),
                         by_entropy = at::zeros({n}, at::kDouble);
        const auto value = [](const at::Tensor& from, int64_t i) { return from[i].item<double>(); };
        for (int64_t s = 0; s < rows; ++s) {
            spec::PolicyBatchOptions options{.rule = of.rule, .divisors = divisors};
            std::vector<spec::PolicyCompletion> row(1);
            row[0].advantage = value(a[3], s);
            const auto first = a[2][s].item<int64_t>();
            double bonus = 0;
            for (int64_t i = first; i < a[2][s + 1].item<int64_t>(); ++i) {
                const auto flag = a[4][i].item<int64_t>();
                if ((flag & ops::token_counts) == 0) continue;
                const double logp = -value(a[0], i), was = value(a[5], i), drawn = value(a[7], i);
                const double old_logp = std::isnan(was) ? logp : was;
                row[0].tokens.push_back({logp, old_logp, value(a[6], i), std::isinf(drawn) ? old_logp : drawn,
                                         (flag & ops::token_chosen) != 0});
                row[0].entropies.push_back(value(a[1], i));
                if (row[0].tokens.back().chosen) {
                    bonus += of.entropy_weight * value(a[1], i);
                    by_entropy[i] = of.entropy_weight;
                }
            }
            const spec::PolicyBatchLoss result = spec::policy_batch_loss(options, row);
            of_rows[s] = result.loss + bonus;
            if (row[0].tokens.empty()) continue;
            for (std::size_t t = 0; t < row[0].tokens.size(); ++t)
                by_loss[first + static_cast<int64_t>(t)] = -result.by_logps[0][t];
        }
        return Tensors{of_rows, by_loss, by_entropy};
    };
    return c;
}

inline std::vector<OpCase> policy_loss_cases(uint64_t seed) {
    using spec::PolicyLossType, spec::RatioLevel, spec::SamplerCorrection;
    at::manual_seed(seed);
    std::vector<PolicyCase> rules{
        {"grpo", {.type = PolicyLossType::grpo, .beta = 0.04, .corrected_kl = false}},
        {"bnpo", {.type = PolicyLossType::bnpo, .delta = 1.4, .off_policy_threshold = 0.1}},
        {"dr_grpo", {.type = PolicyLossType::dr_grpo, .epsilon_high = 0.3}},
        {"dapo", {.beta = 0.1}, -0.01},
        {"gspo", {.type = PolicyLossType::grpo, .level = RatioLevel::sequence}},
        {"rloo", {.type = PolicyLossType::grpo, .level = RatioLevel::sequence_sum}},
        {"cispo", {.type = PolicyLossType::cispo, .epsilon_high = 1.05}},
        {"sapo", {.type = PolicyLossType::sapo, .correction = SamplerCorrection::sequence_mask}},
        {"luspo", {.type = PolicyLossType::luspo, .level = RatioLevel::sequence}},
        {"vespo", {.type = PolicyLossType::vespo, .correction = SamplerCorrection::token_truncate}},
        {"token_mask", {.correction = SamplerCorrection::token_mask, .correction_max = 1.2}},
        {"sequence_truncate", {.correction = SamplerCorrection::sequence_truncate, .correction_max = 2}},
    };
    std::vector<OpCase> cases;
    for (const PolicyCase& rule : rules) {
        cases.push_back(policy_loss_case(rule, 1, 1));
        cases.push_back(policy_loss_case(rule, 9, 23));
    }
    cases.push_back(policy_loss_case(rules[0], 300, 700));  // more rows, and more targets, than a block has threads
    return cases;
}

}  // namespace unsloth::testing
