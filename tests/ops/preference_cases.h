// Cases of preference losses: rows of two sequences, every type, with autograd in fp64 as the oracle.
#pragma once

#include "ops/op_cases.h"
#include "unsloth/ops/preference.h"

namespace unsloth::testing {

using spec::PreferenceLossType;

inline const char* name_of(PreferenceLossType type) {
    constexpr const char* names[] = {"sigmoid", "hinge", "ipo", "robust", "simpo", "orpo", "kto"};
    return names[static_cast<int>(type)];
}

/// What the formulas say, with autograd: `policy` and `reference` are log-probabilities of the sequences.
inline at::Tensor row_losses_oracle(const spec::PreferenceRule& rule, const at::Tensor& policy,
                                    const at::Tensor& reference, const at::Tensor& tokens,
                                    const at::Tensor& desirable) {
    const auto firsts = [](const at::Tensor& t) { return t.slice(0, 0, std::nullopt, 2); };
    const auto seconds = [](const at::Tensor& t) { return t.slice(0, 1, std::nullopt, 2); };
    const auto minus_log = [](const at::Tensor& x) { return -at::log_sigmoid(x); };
    const double smoothing = rule.label_smoothing;
    const at::Tensor ratio = policy - reference, mean = policy / tokens;
    const at::Tensor margin = rule.beta * (firsts(ratio) - seconds(ratio));
    switch (rule.type) {
        case PreferenceLossType::sigmoid:
            return (1 - smoothing) * minus_log(margin) + smoothing * minus_log(-margin);
        case PreferenceLossType::robust:
            return ((1 - smoothing) * minus_log(margin) - smoothing * minus_log(-margin)) / (1 - 2 * smoothing);
        case PreferenceLossType::hinge:
            return at::relu(1 - margin);
        case PreferenceLossType::ipo:
            return (firsts(ratio / tokens) - seconds(ratio / tokens) - 1 / (2 * rule.beta)).square();
        case PreferenceLossType::simpo: {
            const at::Tensor wanted = rule.beta * (firsts(mean) - seconds(mean)) - rule.gamma;
            return (1 - smoothing) * minus_log(wanted) + smoothing * minus_log(-wanted);
        }
        case PreferenceLossType::orpo: {
            const at::Tensor log_odds = mean - at::log(-at::expm1(mean));
            return rule.beta * minus_log(firsts(log_odds) - seconds(log_odds));
        }
        case PreferenceLossType::kto: {
            const at::Tensor divergence = seconds(ratio).mean().clamp_min(0).detach();
            const at::Tensor good = desirable.to(at::kDouble), sign = 2 * good - 1;
            const at::Tensor value = at::sigmoid(sign * rule.beta * (firsts(ratio) - divergence));
            return (good * rule.desirable + (1 - good) * rule.undesirable) * (1 - value);
        }
    }
    return {};
}

/// `prompts`: the chosen answers have targets before them.
inline OpCase preference_case(const spec::PreferenceRule& rule, int64_t rows, int64_t longest, double chosen_weight,
                              bool prompts = false) {
    OpCase c;
    c.name = "preference_loss " + case_name(name_of(rule.type), rows, longest, chosen_weight, prompts);
    c.scalars = test_scalars();
    c.outcome_before.loss = 0.25F;
    const bool kto = rule.type == PreferenceLossType::kto;
    const at::Tensor tokens = at::randint(1, longest + 1, {2 * rows}, at::kInt);
    const at::Tensor before = at::zeros({2 * rows}, at::kInt);
    if (prompts) before.slice(0, 0, std::nullopt, 2).copy_(at::randint(0, longest + 1, {rows}, at::kInt));
    const at::Tensor starts = at::cat({at::zeros({1}, at::kInt), (tokens + before).cumsum(0).to(at::kInt)});
    const at::Tensor answers = (starts.narrow(0, 0, 2 * rows) + before).contiguous();
    const auto n = starts[-1].item<int64_t>();
    const at::Tensor losses = at::rand({n}) * 3, desirable = at::randint(0, 2, {rows}, at::kInt);
    // Of the 4 rows' worth of ranges, the odd ones are answers.
    const at::Tensor ranges = at::repeat_interleave(at::stack({before, tokens}, 1).flatten().to(at::kLong));
    const auto parts = [=](const at::Tensor& of_targets) {
        return at::zeros({4 * rows}, at::kDouble).index_add(0, ranges, of_targets.to(at::kDouble));
    };
    const auto sums = [=](const at::Tensor& of_targets) { return parts(of_targets).slice(0, 1, std::nullopt, 2); };
    // Near what the policy says, so that no loss is beyond its slope.
    const at::Tensor reference = (-sums(losses) + at::randn({2 * rows}) * 2).to(at::kFloat);
    c.args = {{"losses", losses},
              {"starts", starts},
              {"reference", reference},
              {"desirable", desirable},
              {"weight", at::full({n}, NAN), Role::output},
              {"logp chosen", at::full({1}, 0.5F), Role::both},
              {"answers", answers}};
    c.run = [=](ops::Context& ctx, const Tensors& a) {
        const auto on_device = at::TensorOptions(ctx.device());
        ops::PreferenceLoss loss{.rule = rule,
                                 .logp_S = at::empty({2 * rows}, on_device.dtype(at::kDouble)),
                                 .starts_S1 = a[1],
                                 .answers_S = a[6],
                                 .reference_S = a[2],
                                 .chosen_loss_weight = chosen_weight,
                                 .slope_S = at::empty({2 * rows}, on_device.dtype(at::kDouble)),
                                 .weight_n = a[4],
                                 .measures_M = at::zeros({ops::preference_measures}, on_device.dtype(at::kFloat)),
                                 .site = {17}};
        ops::sequence_log_probs(ctx, a[0], a[6], a[1].narrow(0, 1, 2 * rows), loss.logp_S);
        if (prompts) {
            loss.prompt_logp_S = at::empty_like(loss.logp_S);
            ops::sequence_log_probs(ctx, a[0], a[1].narrow(0, 0, 2 * rows), a[6], loss.prompt_logp_S);
        }
        if (kto) {
            loss.desirable_P = a[3];
            loss.divergence_2 = at::empty({2}, on_device.dtype(at::kFloat));
            ops::foreign_divergence(ctx, loss.logp_S, loss.reference_S, loss.divergence_2);
        }
        ops::preference_loss(ctx, loss);
        a[5].add_(loss.measures_M.narrow(0, ops::logp_chosen, 1));
    };
    const auto loss_of = [=](const at::Tensor& of_targets) {
        const at::Tensor policy = -sums(of_targets);
        at::Tensor total =
            row_losses_oracle(rule, policy, reference.to(at::kDouble), tokens.to(at::kDouble), desirable).sum();
        const at::Tensor chosen = policy.slice(0, 0, std::nullopt, 2),
                         prompt = parts(of_targets).slice(0, 0, std::nullopt, 4);
        return chosen_weight == 0 ? total : total - chosen_weight * (chosen.sum() - prompt.sum());
    };
    c.expected = [=](const Tensors& a) {
        const at::Tensor leaf = a[0].detach().clone().requires_grad_();
        loss_of(leaf).backward();
        const bool means = spec::takes_means(rule.type);
        at::Tensor chosen = -sums(a[0]);
        if (means) chosen = chosen / tokens;
        chosen = chosen.slice(0, 0, std::nullopt, 2);
        if (kto) chosen = chosen * desirable;
        return Tensors{leaf.grad(), a[5] + chosen.sum()};
    };
    c.expected_loss =
        c.outcome_before.loss + loss_of(losses.to(at::kDouble)).item<double>() * double(c.scalars.inv_loss_divisor);
    return c;
}

inline std::vector<OpCase> preference_cases(uint64_t seed) {
    at::manual_seed(seed);
    std::vector<OpCase> cases;
    for (const auto type :
         {PreferenceLossType::sigmoid, PreferenceLossType::hinge, PreferenceLossType::ipo, PreferenceLossType::robust,
          PreferenceLossType::simpo, PreferenceLossType::orpo, PreferenceLossType::kto}) {
        spec::PreferenceRule rule{.type = type, .beta = 0.4, .gamma = 0.7, .desirable = 1.3, .undesirable = 0.6};
        const bool smooths = type == PreferenceLossType::sigmoid || type == PreferenceLossType::robust ||
                             type == PreferenceLossType::simpo;
        if (smooths) rule.label_smoothing = 0.2;
        cases.push_back(preference_case(rule, 1, 1, 0));
        cases.push_back(preference_case(rule, 5, 9, 0));
        cases.push_back(preference_case(rule, 300, 700, 0));  // more rows, and more targets, than a block has threads
        if (type != PreferenceLossType::kto) cases.push_back(preference_case(rule, 3, 40, 0.35));
        if (type == PreferenceLossType::orpo) cases.push_back(preference_case(rule, 7, 40, 0.35, true));
    }
    return cases;
}

}  // namespace unsloth::testing
