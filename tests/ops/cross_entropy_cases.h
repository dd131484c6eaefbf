// Cases of cross-entropy, its accumulation, and argmax.
#pragma once

#include <numeric>

#include "ops/op_cases.h"
#include "unsloth/ops/cross_entropy.h"

namespace unsloth::testing {

inline at::Tensor token_losses_oracle(const at::Tensor& logits, const at::Tensor& targets) {
    return -at::log_softmax(logits, 1).gather(1, targets.to(at::kLong).unsqueeze(1)).squeeze(1);
}

inline OpCase cross_entropy_case(int64_t rows, int64_t columns, at::ScalarType dtype, Layout layout, bool gradient,
                                 double spread) {
    OpCase c;
    c.name =
        "cross_entropy " + case_name(rows, columns, c10::toString(dtype), name_of(layout), gradient ? "gradient" : "");
    c.scalars = test_scalars();
    c.args = {
        {"logits", slice_of(at::randn({rows, columns}) * spread, dtype, layout), gradient ? Role::both : Role::input},
        {"targets", at::randint(0, columns, {rows}, at::kInt)},
        {"losses", at::full({rows}, NAN), Role::output}};
    if (rows > 1) c.args[1].value[rows - 1] = columns - 1;  // the last column may lie in a tail
    const double scale = double(c.scalars.inv_loss_divisor) * c.scalars.loss_scale;
    c.run = [=](ops::Context& ctx, const Tensors& a) { ops::cross_entropy(ctx, a[0], a[1], a[2], gradient); };
    c.expected = [=](const Tensors& a) {
        const at::Tensor leaf = a[0].detach().clone().requires_grad_();
        const at::Tensor losses = token_losses_oracle(leaf, a[1]);
        losses.sum().backward();
        return gradient ? Tensors{leaf.grad() * scale, losses.detach()} : Tensors{losses.detach()};
    };
    return c;
}

/// Rows weigh differently in the gradient; their losses are as they are.
inline OpCase weighted_cross_entropy_case(int64_t rows, int64_t columns, at::ScalarType dtype, Layout layout) {
    OpCase c = cross_entropy_case(rows, columns, dtype, layout, /*gradient=*/true, 3);
    c.name = "weighted " + c.name;
    const at::Tensor weights = at::randn({rows});
    if (rows > 1) weights[0] = 0;
    c.args.push_back({"weights", weights});
    const double scale = double(c.scalars.inv_loss_divisor) * c.scalars.loss_scale;
    c.run = [](ops::Context& ctx, const Tensors& a) { ops::cross_entropy(ctx, a[0], a[1], a[2], true, a[3]); };
    c.expected = [=](const Tensors& a) {
        const at::Tensor leaf = a[0].detach().clone().requires_grad_();
        const at::Tensor losses = token_losses_oracle(leaf, a[1]);
        (losses * a[3]).sum().backward();
        return Tensors{leaf.grad() * scale, losses.detach()};
    };
    return c;
}

/// The vocabulary is cut at these columns, as over ranks; what their halves make together is what one head makes.
inline OpCase sliced_cross_entropy_case(int64_t rows, std::vector<int64_t> widths, at::ScalarType dtype, Layout layout,
                                        bool gradient, bool weighted, double spread) {
    const int64_t columns = std::accumulate(widths.begin(), widths.end(), int64_t{0});
    OpCase c = weighted ? weighted_cross_entropy_case(rows, columns, dtype, layout)
                        : cross_entropy_case(rows, columns, dtype, layout, gradient, spread);
    c.name = "in " + std::to_string(widths.size()) + " slices " + c.name;
    if (rows > 2)
        c.args[1].value[0] = widths.front() - 1, c.args[1].value[1] = widths.front() % columns;  // at a border
    c.run = [=](ops::Context& ctx, const Tensors& a) {
        const auto floats = at::TensorOptions(at::kFloat).device(ctx.device());
        const at::Tensor statistics = at::full({int64_t(widths.size()), 3, rows}, NAN, floats);
        const auto each = [&](const auto& visit) {
            int64_t first = 0;
            for (std::size_t s = 0; s < widths.size(); ++s) {
                visit(static_cast<int64_t>(s), first, a[0].narrow(1, first, widths[s]));
                first += widths[s];
            }
        };
        each([&](int64_t s, int64_t first, const at::Tensor& logits) {
            ops::cross_entropy_statistics(ctx, logits, a[1], first, statistics[s]);
        });
        at::Tensor before;
        each([&](int64_t, int64_t first, const at::Tensor& logits) {
            ops::cross_entropy_of_slice(ctx, logits, a[1], first, statistics, a[2], gradient || weighted,
                                        weighted ? a[3] : at::Tensor());
            if (before.defined()) {
                EXPECT_TRUE(at::equal(before, a[2])) << "losses differ between slices";
            }
            before = a[2].clone();
        });
    };
    return c;
}

inline OpCase accumulate_loss_case(int64_t count, double poison, double before) {
    OpCase c;
    c.name = "accumulate_loss " + case_name(count, poison);
    c.scalars = test_scalars();
    c.outcome_before.loss = static_cast<float>(before);
    const at::Tensor losses = at::rand({count}) * 5;
    if (poison != 0 && count > 0) losses[count / 2] = poison;
    c.args = {{"losses", losses}};
    c.expected = [](const Tensors&) { return Tensors{}; };
    const bool bad = !std::isfinite(poison);
    if (bad) {  // the loss itself is then not finite: only the report is compared
        c.run = [](ops::Context& ctx, const Tensors& a) {
            const at::Tensor outcome = bytes_on(spec::StepOutcome{0, 0, 0, 0, 40}, ctx.device());
            spec::StepOutcome* const reported = ctx.outcome;
            ctx.outcome = static_cast<spec::StepOutcome*>(outcome.mutable_data_ptr());
            ops::accumulate_loss(ctx, a[0], {17});
            ops::accumulate_loss(ctx, a[0], {23});
            spec::StepOutcome seen;
            const at::Tensor bytes = outcome.cpu();
            std::memcpy(&seen, bytes.const_data_ptr(), sizeof(seen));
            EXPECT_FALSE(std::isfinite(seen.loss));
            EXPECT_EQ(seen.first_bad_site, 17u);
            ctx.outcome = reported;
        };
    } else {
        c.run = [](ops::Context& ctx, const Tensors& a) { ops::accumulate_loss(ctx, a[0], {17}); };
        c.expected_loss =
            c.outcome_before.loss + losses.to(at::kDouble).sum().item<double>() * c.scalars.inv_loss_divisor;
    }
    return c;
}

inline OpCase argmax_case(int64_t rows, int64_t columns, at::ScalarType dtype, Layout layout, bool ties) {
    OpCase c;
    c.name = "argmax_rows " + case_name(rows, columns, c10::toString(dtype), name_of(layout), ties ? "ties" : "");
    const at::Tensor logits = ties ? at::randint(-3, 3, {rows, columns}, at::kFloat) : at::randn({rows, columns});
    c.args = {{"logits", slice_of(logits, dtype, layout)}, {"best", at::full({rows}, -5, at::kInt), Role::output}};
    c.run = [](ops::Context& ctx, const Tensors& a) { ops::argmax_rows(ctx, a[0], a[1]); };
    c.expected = [](const Tensors& a) {
        // The lowest index among equals: the first place where the row reaches its maximum.
        const at::Tensor is_best = a[0] == a[0].amax(1, true);
        const at::Tensor index = at::arange(a[0].size(1)).expand(a[0].sizes());
        return Tensors{index.masked_fill(~is_best, a[0].size(1)).amin(1)};
    };
    return c;
}

inline std::vector<OpCase> cross_entropy_cases(uint64_t seed) {
    at::manual_seed(seed);
    std::vector<OpCase> cases;
    for (const at::ScalarType dtype : compute_dtypes) {
        for (const Layout layout : all_layouts) {
            cases.push_back(weighted_cross_entropy_case(1, 9, dtype, layout));
            cases.push_back(weighted_cross_entropy_case(5, 1032, dtype, layout));
            cases.push_back(sliced_cross_entropy_case(5, {344, 688}, dtype, layout, true, true, 3));
            for (const bool gradient : {false, true}) {
                cases.push_back(cross_entropy_case(1, 1, dtype, layout, gradient, 1));
                cases.push_back(cross_entropy_case(3, 7, dtype, layout, gradient, 3));
                cases.push_back(cross_entropy_case(5, 32, dtype, layout, gradient, 30));
                cases.push_back(cross_entropy_case(4, 1000, dtype, layout, gradient, 5));
                cases.push_back(cross_entropy_case(3, 4099, dtype, layout, gradient, 4));
                cases.push_back(sliced_cross_entropy_case(1, {9}, dtype, layout, gradient, false, 3));
                cases.push_back(sliced_cross_entropy_case(5, {8, 1, 16, 7}, dtype, layout, gradient, false, 30));
                cases.push_back(sliced_cross_entropy_case(4, {2056, 2043}, dtype, layout, gradient, false, 4));
            }
            cases.push_back(argmax_case(1, 1, dtype, layout, false));
            cases.push_back(argmax_case(6, 37, dtype, layout, true));
            cases.push_back(argmax_case(3, 20008, dtype, layout, true));
            cases.push_back(argmax_case(3, 20003, dtype, layout, false));
        }
    }
    cases.push_back(cross_entropy_case(2, 128256, at::kBFloat16, Layout::packed, true, 3));
    cases.push_back(cross_entropy_case(3, 33001, at::kBFloat16, Layout::wide, true, 3));
    cases.push_back(cross_entropy_case(0, 64, at::kBFloat16, Layout::packed, true, 3));
    for (const int64_t count : {0, 1, 1000, 5003}) cases.push_back(accumulate_loss_case(count, 0, 1.5));
    cases.push_back(accumulate_loss_case(3000, NAN, 0));
    cases.push_back(accumulate_loss_case(3000, INFINITY, 0));
    return cases;
}

}  // namespace unsloth::testing
