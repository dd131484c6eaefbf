// Cases of DoRA's norms and scales.
#pragma once

#include "ops/op_cases.h"
#include "ops/swiglu_cases.h"
#include "unsloth/ops/dora.h"

namespace unsloth::testing {

/// scale, 1 / norm and bias of so many outputs, as arguments.
inline void add_scale(std::vector<Arg>& args, int64_t columns, at::ScalarType dtype) {
    args.push_back({"scale", at::randn({columns})});
    args.push_back({"inverse", at::rand({columns}) + 0.1});
    args.push_back({"bias", at::randn({columns}).to(dtype)});
}

/// Two projections' magnitudes, with columns between them that have none, and what is there already.
inline void add_gradients(std::vector<Arg>& args, int64_t columns) {
    args.push_back({"dm of the first", at::randn({columns / 3}), Role::both});
    args.push_back({"dm of the last", at::randn({columns - columns / 2}), Role::both});
}
inline std::vector<ops::MagnitudeGradient> gradients_at(const Tensors& a, std::size_t first, int64_t columns) {
    return {{0, a[first]}, {columns / 2, a[first + 1]}};
}
inline Tensors expected_gradients(const Tensors& a, std::size_t first, const at::Tensor& dm, int64_t columns) {
    return {a[first] + dm.narrow(0, 0, columns / 3), a[first + 1] + dm.narrow(0, columns / 2, columns - columns / 2)};
}

inline OpCase square_sums_case(int64_t rows, int64_t columns, at::ScalarType dtype, Layout layout) {
    OpCase sums;
    sums.name = "row_square_sums " + case_name(rows, columns, c10::toString(dtype), name_of(layout));
    sums.args = {{"w", slice_of(at::randn({rows, columns}), dtype, layout)},
                 {"out", poisoned_slice({rows}, at::kFloat, Layout::packed), Role::output}};
    sums.run = [](ops::Context& ctx, const Tensors& a) { ops::row_square_sums(ctx, a[0], a[1]); };
    sums.expected = [](const Tensors& a) { return Tensors{a[0].square().sum(1)}; };
    return sums;
}

/// Against the norms of W + sBA itself; row 0 of W and B is 0.
inline OpCase norms_case(int64_t rows, int64_t rank, at::ScalarType dtype, Layout layout) {
    const int64_t inputs = 2 * rank + 5;
    OpCase norms;
    norms.name = "dora_norms " + case_name(rows, rank, c10::toString(dtype), name_of(layout));
    at::Tensor w = at::randn({rows, inputs}), b = at::randn({rows, rank}) * 0.3;
    const at::Tensor a = at::randn({rank, inputs});
    w[0].zero_();
    b[0].zero_();
    norms.args = {{"b", slice_of(b, dtype, layout)},
                  {"base", w.square().sum(1)},
                  {"wa", slice_of(a.matmul(w.t()), at::kFloat, layout)},
                  {"gram", slice_of(a.matmul(a.t()), at::kFloat, layout)},
                  {"magnitude", at::rand({rows}) + 0.5},
                  {"scale", poisoned_slice({rows}, at::kFloat, Layout::packed), Role::output},
                  {"inverse", poisoned_slice({rows}, at::kFloat, Layout::packed), Role::output}};
    norms.run = [](ops::Context& ctx, const Tensors& t) {
        ops::dora_norms(ctx, {.base_N = t[1],
                              .b_Nr = t[0],
                              .wa_rN = t[2],
                              .gram_rr = t[3],
                              .magnitude_N = t[4],
                              .scale_N = t[5],
                              .inverse_N = t[6]});
    };
    norms.expected = [w = w.to(at::kDouble), a = a.to(at::kDouble)](const Tensors& t) {
        const at::Tensor norm = (w + t[0].matmul(a)).square().sum(1).sqrt();
        const at::Tensor inverse = at::where(norm > 0, norm.reciprocal(), at::zeros_like(norm));
        return Tensors{t[4] * inverse, inverse};
    };
    norms.tolerance = Tolerance{2e-5, 2e-5};  // sums whose terms cancel
    return norms;
}

/// y = c ∘ z + bias (+ residual), and its gradients; with the residual in y's place.
inline void add_scale_cases(std::vector<OpCase>& cases, int64_t tokens, int64_t columns, at::ScalarType dtype,
                            Layout layout) {
    const std::string name = case_name(tokens, columns, c10::toString(dtype), name_of(layout));
    const auto matrix = [&] { return slice_of(at::randn({tokens, columns}), dtype, layout); };
    OpCase forward;
    forward.name = "dora_forward " + name;
    forward.args = {{"z", matrix()}, {"y", poisoned_slice({tokens, columns}, dtype, layout), Role::output}};
    add_scale(forward.args, columns, dtype);
    forward.run = [](ops::Context& ctx, const Tensors& a) {
        ops::dora_forward(ctx, a[0], {a[2], a[3], a[4]}, {}, a[1]);
    };
    forward.expected = [](const Tensors& a) { return Tensors{a[2] * a[0] + a[4]}; };
    cases.push_back(forward);

    OpCase onto = forward;
    onto.name = "dora_forward onto the residual " + name;
    onto.args[1] = {"residual and y", matrix(), Role::both};
    onto.run = [](ops::Context& ctx, const Tensors& a) { ops::dora_forward(ctx, a[0], {a[2], a[3], {}}, a[1], a[1]); };
    onto.expected = [](const Tensors& a) { return Tensors{a[2] * a[0] + a[1]}; };
    cases.push_back(onto);

    OpCase backward;
    backward.name = "dora_backward " + name;
    backward.args = {
        {"dy", matrix()}, {"z", matrix()}, {"dz", poisoned_slice({tokens, columns}, dtype, layout), Role::output}};
    add_scale(backward.args, columns, dtype);
    add_gradients(backward.args, columns);
    backward.run = [columns](ops::Context& ctx, const Tensors& a) {
        ops::dora_backward(ctx, a[0], a[1], {a[3], a[4], a[5]}, a[2], gradients_at(a, 6, columns));
    };
    backward.expected = [columns](const Tensors& a) {
        const Tensors dm = expected_gradients(a, 6, a[4] * (a[0] * a[1]).sum(0), columns);
        return Tensors{a[3] * a[0], dm[0], dm[1]};
    };
    backward.workspace = [=](at::Device device) { return ops::dora_backward_workspace(device, tokens, columns); };
    cases.push_back(backward);

    OpCase in_place = backward;
    in_place.name = "dora_backward in place " + name;
    in_place.args[0].role = Role::both;
    in_place.args.erase(in_place.args.begin() + 2);
    in_place.run = [columns](ops::Context& ctx, const Tensors& a) {
        ops::dora_backward(ctx, a[0], a[1], {a[2], a[3], a[4]}, a[0], gradients_at(a, 5, columns));
    };
    in_place.expected = [columns](const Tensors& a) {
        const Tensors dm = expected_gradients(a, 5, a[3] * (a[0] * a[1]).sum(0), columns);
        return Tensors{a[2] * a[0], dm[0], dm[1]};
    };
    cases.push_back(in_place);
}

inline void add_swiglu_cases(std::vector<OpCase>& cases, int64_t tokens, int64_t columns, at::ScalarType dtype,
                             Layout layout) {
    const std::string name = case_name(tokens, columns, c10::toString(dtype), name_of(layout));
    const at::Tensor z = slice_of(at::randn({tokens, 2 * columns}) * 3, dtype, layout);
    OpCase forward;
    forward.name = "dora_swiglu_forward " + name;
    forward.args = {{"z", z}, {"act", poisoned_slice({tokens, columns}, dtype, layout), Role::output}};
    add_scale(forward.args, 2 * columns, dtype);
    forward.run = [](ops::Context& ctx, const Tensors& a) {
        ops::dora_swiglu_forward(ctx, a[0], {a[2], a[3], a[4]}, a[1]);
    };
    forward.expected = [](const Tensors& a) { return Tensors{swiglu_oracle(a[2] * a[0] + a[4])}; };
    cases.push_back(forward);

    OpCase backward;
    backward.name = "dora_swiglu_backward, act over dact " + name;
    backward.args = {{"dact", slice_of(at::randn({tokens, columns}), dtype, layout), Role::both}, {"z", z, Role::both}};
    add_scale(backward.args, 2 * columns, dtype);
    add_gradients(backward.args, 2 * columns);
    backward.run = [columns](ops::Context& ctx, const Tensors& a) {
        ops::dora_swiglu_backward(ctx, a[0], a[1], {a[2], a[3], a[4]}, a[0], gradients_at(a, 5, 2 * columns));
    };
    backward.expected = [columns](const Tensors& a) {
        const at::Tensor y = (a[2] * a[1] + a[4]).detach().requires_grad_();
        const at::Tensor act = swiglu_oracle(y);
        act.backward(a[0]);
        const Tensors dm = expected_gradients(a, 5, a[3] * (y.grad() * a[1]).sum(0), 2 * columns);
        return Tensors{act.detach(), a[2] * y.grad(), dm[0], dm[1]};
    };
    backward.workspace = [=](at::Device device) { return ops::dora_backward_workspace(device, tokens, 2 * columns); };
    cases.push_back(backward);
}

inline std::vector<OpCase> dora_cases(uint64_t seed) {
    at::manual_seed(seed);
    std::vector<OpCase> cases;
    for (const at::ScalarType dtype : compute_dtypes)
        for (const Layout layout : all_layouts) {
            for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {3, 777}, {40, 64}})
                cases.push_back(square_sums_case(rows, columns, dtype, layout));
            for (const auto& [rows, rank] : std::vector<std::pair<int64_t, int64_t>>{{2, 1}, {9, 8}, {70, 40}})
                cases.push_back(norms_case(rows, rank, dtype, layout));
            for (const auto& [tokens, columns] :
                 std::vector<std::pair<int64_t, int64_t>>{{1, 4}, {3, 7}, {33, 72}, {300, 24}, {0, 16}}) {
                add_scale_cases(cases, tokens, columns, dtype, layout);
                add_swiglu_cases(cases, tokens, columns, dtype, layout);
            }
        }
    add_scale_cases(cases, 1400, 776, at::kBFloat16, Layout::wide);
    add_swiglu_cases(cases, 5000, 264, at::kBFloat16, Layout::wide);
    return cases;
}

}  // namespace unsloth::testing
