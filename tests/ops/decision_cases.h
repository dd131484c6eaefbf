// Decisions against LibTorch's autograd in fp64.
#pragma once

#include "ops/op_cases.h"
#include "unsloth/ops/decision.h"

namespace unsloth::testing {

struct DecisionShape {
    int64_t rows, columns, options;
    int64_t width;  ///< W, of which a row uses two or three tokens an option
};

inline OpCase decision_case(double brier_weight, const DecisionShape& shape, Layout layout, bool gradient) {
    const auto [rows, columns, options, width] = shape;
    OpCase c;
    c.name = "decision_loss " +
             case_name(brier_weight, rows, columns, options, width, name_of(layout), gradient ? "gradient" : "");
    c.scalars = test_scalars();
    at::Tensor ids = at::full({rows, width}, -1, at::kInt), shares = at::full({rows, width}, -1.F);
    std::vector<std::vector<int64_t>> option_of(static_cast<std::size_t>(rows));
    for (int64_t row = 0; row < rows; ++row) {
        const at::Tensor any = at::randperm(columns, at::kInt);
        const bool soft = row % 2 == 1;
        const at::Tensor answer = soft ? at::softmax(at::randn({options}), 0) : at::zeros({options});
        if (!soft) answer[row % options] = 1.F;
        int64_t next = 0;
        for (int64_t option = 0; option < options; ++option)
            for (int64_t token = 0; token < 1 + (option + row) % 3; ++token, ++next) {
                ids[row][next] = any[next];
                if (token == 0) shares[row][next] = answer[option];
                option_of[static_cast<std::size_t>(row)].push_back(option);
            }
    }
    c.args = {
        {"logits", slice_of(at::randn({rows, columns}) * 3, at::kFloat, layout), gradient ? Role::both : Role::input},
        {"ids", ids},
        {"shares", shares},
        {"losses", at::full({rows}, NAN), Role::output},
        {"brier", at::full({rows}, NAN), Role::output},
        {"accuracy", at::full({rows}, NAN), Role::output}};
    const double scale = double(c.scalars.inv_loss_divisor) * c.scalars.loss_scale;
    c.run = [=](ops::Context& ctx, const Tensors& a) {
        ops::decision_loss(ctx, {.rule = {brier_weight},
                                 .logits_CV = a[0],
                                 .ids_CW = a[1],
                                 .shares_CW = a[2],
                                 .losses_C = a[3],
                                 .brier_C = a[4],
                                 .accuracy_C = a[5],
                                 .gradient = gradient});
    };
    c.expected = [=](const Tensors& a) {
        const at::Tensor leaf = a[0].detach().clone().requires_grad_();
        std::vector<at::Tensor> losses, briers, accuracies;
        for (int64_t row = 0; row < rows; ++row) {
            const std::vector<int64_t>& of = option_of[static_cast<std::size_t>(row)];
            const auto count = static_cast<int64_t>(of.size());
            const at::Tensor q = leaf[row].index_select(0, a[1][row].narrow(0, 0, count).to(at::kLong)).softmax(0);
            const at::Tensor numbers = at::tensor(of, at::kLong);
            const at::Tensor p = at::zeros({options}, at::kDouble).index_add(0, numbers, q);
            const at::Tensor t =
                at::zeros({options}, at::kDouble).index_add(0, numbers, a[2][row].narrow(0, 0, count).clamp_min(0));
            briers.push_back((p - t).square().sum());
            losses.push_back(-(t * p.log()).sum() + brier_weight * briers.back());
            accuracies.push_back(t[p.argmax().item<int64_t>()]);
        }
        const at::Tensor loss = at::stack(losses);
        loss.sum().backward();
        Tensors out;
        if (gradient) out.push_back(leaf.grad() * scale);
        out.push_back(loss.detach());
        out.push_back(at::stack(briers).detach());
        out.push_back(at::stack(accuracies));
        return out;
    };
    return c;
}

inline OpCase count_decisions_case(int64_t count) {
    OpCase c;
    c.name = "count_decisions " + case_name(count);
    c.args = {{"brier", at::rand({count})}, {"accuracy", at::rand({count})}, {"measures", at::ones({5}), Role::both}};
    c.run = [](ops::Context& ctx, const Tensors& a) { ops::count_decisions(ctx, a[0], a[1], a[2]); };
    c.expected = [=](const Tensors& a) {
        const at::Tensor zero = at::zeros({}, at::kDouble);
        return Tensors{a[2] +
                       at::stack({a[0].sum(), a[1].sum(), at::full({}, double(count), at::kDouble), zero, zero})};
    };
    return c;
}

inline std::vector<OpCase> decision_cases(uint64_t seed) {
    at::manual_seed(seed);
    std::vector<OpCase> cases;
    for (const double weight : {0.0, 0.7})
        for (const bool gradient : {false, true}) {
            for (const Layout layout : all_layouts)
                cases.push_back(decision_case(weight, {5, 37, 4, 12}, layout, gradient));
            cases.push_back(decision_case(weight, {3, 4099, 2, 765}, Layout::packed, gradient));
            cases.push_back(decision_case(weight, {2, 4099, 255, 765}, Layout::packed, gradient));
        }
    for (const int64_t count : {1, 1000, 5003}) cases.push_back(count_decisions_case(count));
    return cases;
}

}  // namespace unsloth::testing
