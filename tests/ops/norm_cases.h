// Cases of RMSNorm over rows and over heads.
#pragma once

#include "ops/op_cases.h"
#include "unsloth/ops/norm.h"

namespace unsloth::testing {

inline constexpr double norm_eps = 1e-5;

inline at::Tensor norm_rstd(const at::Tensor& x) {
    return (x.square().mean(-1) + norm_eps).rsqrt();
}

inline Tensors norm_forward_oracle(const at::Tensor& x, const at::Tensor& weight) {
    const at::Tensor rstd = norm_rstd(x);
    return {x * rstd.unsqueeze(-1) * weight, rstd};
}

/// Gradients with respect to x and weight, by autograd.
inline Tensors norm_backward_oracle(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight) {
    const at::Tensor x_leaf = x.detach().clone().requires_grad_();
    const at::Tensor weight_leaf = weight.detach().clone().requires_grad_();
    (x_leaf * norm_rstd(x_leaf).unsqueeze(-1) * weight_leaf).backward(dy);
    return {x_leaf.grad(), weight_leaf.grad()};
}

struct NormTensors {
    at::Tensor x, dy, weight, rstd, dx, dweight;
};

inline NormTensors norm_tensors(const std::vector<int64_t>& shape, at::ScalarType dtype, Layout layout,
                                bool fp32_weight) {
    NormTensors t;
    const at::Tensor sizes = at::logspace(-1, 1, shape[0], 10.0);  // rows of very different length
    t.x =
        slice_of(at::randn(shape) * (shape.size() == 3 ? sizes.view({-1, 1, 1}) : sizes.view({-1, 1})), dtype, layout);
    t.dy = slice_of(at::randn(shape), dtype, layout);
    t.weight = (at::randn({shape.back()}) * 0.3 + 1).to(fp32_weight ? at::kFloat : dtype);
    t.rstd = norm_rstd(t.x.to(at::kDouble)).to(at::kFloat);
    t.dx = slice_of(at::randn(shape), dtype, layout);
    t.dweight = at::randn({shape.back()});
    return t;
}

inline OpCase rms_norm_forward_case(const NormTensors& t, const std::string& name) {
    OpCase c;
    c.name = "rms_norm_forward " + name;
    c.args = {{"x", t.x},
              {"weight", t.weight},
              {"y", copy_with_storage(t.x, at::kCPU).fill_(NAN), Role::output},
              {"rstd", at::full_like(t.rstd, NAN), Role::output}};
    c.run = [](ops::Context& ctx, const Tensors& a) {
        ops::rms_norm_forward(ctx, a[0], a[1], norm_eps, a[2], a[3], {5});
    };
    c.expected = [](const Tensors& a) { return norm_forward_oracle(a[0], a[1]); };
    return c;
}

inline OpCase rms_norm_backward_case(const NormTensors& t, bool with_dweight, const std::string& name) {
    OpCase c;
    c.name = "rms_norm_backward " + name + (with_dweight ? "with dweight" : "");
    c.args = {{"dy", t.dy}, {"x", t.x}, {"weight", t.weight}, {"rstd", t.rstd}, {"dx", t.dx, Role::both}};
    if (with_dweight) c.args.push_back({"dweight", t.dweight, Role::both});
    const int64_t rows = t.x.size(0), columns = t.x.size(1);
    if (columns == 1 && t.x.scalar_type() == at::kFloat) {
        // All that is left of rstd * weight * dy is epsilon's part: the rounding is that of the terms, which are not of
        // order 1, and no other column's result is as large as they are.
        const double terms = (t.rstd.unsqueeze(-1) * t.weight * t.dy).abs().max().item<double>();
        c.tolerance = tolerance_of(at::kFloat);
        c.tolerance->floor *= std::max(1.0, terms);
    }
    c.workspace = [=](at::Device device) { return ops::norm_backward_workspace(device, rows, columns); };
    c.run = [=](ops::Context& ctx, const Tensors& a) {
        ops::rms_norm_backward(ctx, a[0], a[1], a[2], a[3], a[4], with_dweight ? a[5] : at::Tensor(), {5});
    };
    c.expected = [=](const Tensors& a) {
        const Tensors gradients = norm_backward_oracle(a[0], a[1], a[2]);
        Tensors expected = {a[4] + gradients[0]};
        if (with_dweight) expected.push_back(a[5] + gradients[1]);
        return expected;
    };
    return c;
}

/// The backward that rebuilds the forward's output, in dy's place or beside it.
inline OpCase rms_norm_rebuild_case(const NormTensors& t, bool over_dy, bool with_dweight, const std::string& name) {
    OpCase c = rms_norm_backward_case(t, with_dweight, name + (over_dy ? "y over dy " : "with y "));
    if (over_dy) {
        c.args[0].role = Role::both;
    } else {
        c.args.push_back({"y", copy_with_storage(t.x, at::kCPU).fill_(NAN), Role::output});
    }
    c.run = [=](ops::Context& ctx, const Tensors& a) {
        ops::rms_norm_backward(ctx, a[0], a[1], a[2], a[3], a[4], with_dweight ? a[5] : at::Tensor(), {5},
                               over_dy ? a[0] : a.back());
    };
    c.expected = [over_dy, gradients = c.expected](const Tensors& a) {
        Tensors expected = gradients(a);
        expected.insert(over_dy ? expected.begin() : expected.end(), norm_forward_oracle(a[1], a[2])[0]);
        return expected;
    };
    return c;
}

inline OpCase head_norm_forward_case(const NormTensors& t, const std::string& name) {
    OpCase c;
    c.name = "head_norm_forward in place " + name;
    c.args = {{"x", t.x, Role::both}, {"weight", t.weight}, {"rstd", at::full_like(t.rstd, NAN), Role::output}};
    c.run = [](ops::Context& ctx, const Tensors& a) { ops::head_norm_forward(ctx, a[0], a[1], norm_eps, a[0], a[2]); };
    c.expected = [](const Tensors& a) { return norm_forward_oracle(a[0], a[1]); };
    return c;
}

inline OpCase head_norm_backward_case(const NormTensors& t, bool in_place, const std::string& name) {
    OpCase c;
    c.name = "head_norm_backward " + name + (in_place ? "in place" : "");
    c.args = {{"dy", t.dy, in_place ? Role::both : Role::input}, {"x", t.x}, {"weight", t.weight}, {"rstd", t.rstd}};
    if (!in_place) c.args.push_back({"dx", copy_with_storage(t.dx, at::kCPU).fill_(NAN), Role::output});
    c.args.push_back({"dweight", t.dweight, Role::both});
    const int64_t rows = t.rstd.numel(), columns = t.x.size(2);
    c.workspace = [=](at::Device device) { return ops::norm_backward_workspace(device, rows, columns); };
    c.run = [=](ops::Context& ctx, const Tensors& a) {
        ops::head_norm_backward(ctx, a[0], a[1], a[2], a[3], in_place ? a[0] : a[4], a.back());
    };
    c.expected = [=](const Tensors& a) {
        const Tensors gradients = norm_backward_oracle(a[0], a[1], a[2]);
        return Tensors{gradients[0], a.back() + gradients[1]};
    };
    return c;
}

/// A poisoned row must be reported, and the lowest code must win.
inline std::vector<OpCase> norm_site_cases() {
    std::vector<OpCase> cases;
    for (const double poison : {double(NAN), double(INFINITY)}) {
        for (const int64_t columns : {6, 64, 4096}) {
            NormTensors t = norm_tensors({9, columns}, at::kBFloat16, Layout::packed, true);
            // Only the report is judged; the results go to tensors of the call's own.
            OpCase forward = rms_norm_forward_case(t, case_name("reports", poison, columns));
            const at::Tensor x = t.x.clone();
            x[7][columns - 1] = poison;
            forward.args = {{"x", x}};
            const at::Tensor weight = t.weight;
            forward.run = [weight](ops::Context& ctx, const Tensors& a) {
                const at::Tensor y = at::empty_like(a[0]);
                const at::Tensor rstd = at::empty({a[0].size(0)}, a[0].options().dtype(at::kFloat));
                const at::Tensor w = weight.to(a[0].device());
                ops::rms_norm_forward(ctx, a[0], w, norm_eps, y, rstd, {5});
                ops::rms_norm_forward(ctx, a[0], w, norm_eps, y, rstd, {9});  // higher: must not replace 5
                ops::rms_norm_forward(ctx, a[0], w, norm_eps, y, rstd);       // not a place
            };
            forward.expected = [](const Tensors&) { return Tensors{}; };
            forward.expected_bad_site = 5;
            cases.push_back(forward);

            OpCase backward = forward;
            backward.name = "rms_norm_backward " + case_name("reports", poison, columns);
            const at::Tensor dx = t.dx.clone();
            dx[4][columns / 2] = poison;
            backward.args = {{"dx", dx}};
            backward.run = [t](ops::Context& ctx, const Tensors& a) {
                const at::Device device = a[0].device();
                const at::Tensor result = a[0].clone();
                ops::rms_norm_backward(ctx, t.dy.to(device), t.x.to(device), t.weight.to(device), t.rstd.to(device),
                                       result, {}, {11});
            };
            backward.expected_bad_site = 11;
            cases.push_back(backward);
        }
    }
    return cases;
}

inline std::vector<OpCase> norm_cases(uint64_t seed) {
    at::manual_seed(seed);
    std::vector<OpCase> cases;
    const auto add_rows = [&](const std::vector<int64_t>& shape, at::ScalarType dtype, Layout layout,
                              bool fp32_weight) {
        const NormTensors t = norm_tensors(shape, dtype, layout, fp32_weight);
        const std::string name =
            case_name(shape[0], shape[1], c10::toString(dtype), name_of(layout), fp32_weight ? "fp32 weight" : "");
        cases.push_back(rms_norm_forward_case(t, name));
        cases.push_back(rms_norm_backward_case(t, false, name));
        cases.push_back(rms_norm_backward_case(t, true, name));
        cases.push_back(rms_norm_rebuild_case(t, true, false, name));
        cases.push_back(rms_norm_rebuild_case(t, false, true, name));
    };
    const auto add_heads = [&](const std::vector<int64_t>& shape, at::ScalarType dtype, Layout layout,
                               bool fp32_weight) {
        const NormTensors t = norm_tensors(shape, dtype, layout, fp32_weight);
        const std::string name = case_name(shape[0], shape[1], shape[2], c10::toString(dtype), name_of(layout));
        cases.push_back(head_norm_forward_case(t, name));
        cases.push_back(head_norm_backward_case(t, false, name));
        cases.push_back(head_norm_backward_case(t, true, name));
    };
    for (const at::ScalarType dtype : compute_dtypes) {
        for (const Layout layout : all_layouts) {
            bool fp32_weight = layout == Layout::wide;
            for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{1, 1},
                                                                                       {3, 5},
                                                                                       {7, 64},
                                                                                       {70, 24},
                                                                                       {5, 100},
                                                                                       {33, 256},
                                                                                       {4, 1000},
                                                                                       {2, 2056},
                                                                                       {3, 4096},
                                                                                       {2, 8200}}) {
                add_rows(shape, dtype, layout, fp32_weight);
                fp32_weight = !fp32_weight;
            }
            for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
                     {3, 2, 64}, {5, 3, 128}, {2, 4, 80}, {4, 1, 6}, {3, 2, 256}, {9, 5, 96}}) {
                add_heads(shape, dtype, layout, fp32_weight);
                fp32_weight = !fp32_weight;
            }
        }
    }
    // More rows than any grid: blocks must loop.
    add_rows({3000, 136}, at::kBFloat16, Layout::packed, false);
    add_rows({1500, 1032}, at::kBFloat16, Layout::wide, true);
    add_rows({1100, 77}, at::kHalf, Layout::unaligned, true);
    add_rows({700, 2056}, at::kFloat, Layout::packed, true);
    add_heads({700, 9, 128}, at::kBFloat16, Layout::wide, false);
    add_rows({0, 64}, at::kBFloat16, Layout::packed, false);
    for (OpCase& c : norm_site_cases()) cases.push_back(std::move(c));
    return cases;
}

/// The rebuilt output has the forward's bits, and the gradient those of a backward without it.
inline void expect_norm_rebuilds_bits(at::Device device) {
    at::manual_seed(8);
    ops::Context ctx(device);
    for (const int64_t columns : {24, 1000, 4096, 8200}) {
        const auto random = [&] { return at::randn({37, columns}).to(device, at::kBFloat16); };
        const at::Tensor x = random(), dy = random(), weight = at::randn({columns}).to(device), before = random();
        const at::Tensor y = at::empty_like(x), rstd = at::empty({37}, weight.options());
        const at::Tensor plain = before.clone(), fused = before.clone(), rebuilt = dy.clone();
        ops::rms_norm_forward(ctx, x, weight, norm_eps, y, rstd);
        ops::rms_norm_backward(ctx, dy, x, weight, rstd, plain, {});
        ops::rms_norm_backward(ctx, rebuilt, x, weight, rstd, fused, {}, {}, rebuilt);
        EXPECT_TRUE(same_bits(rebuilt.cpu(), y.cpu())) << columns;
        EXPECT_TRUE(same_bits(fused.cpu(), plain.cpu())) << columns;
    }
}

}  // namespace unsloth::testing
