// Cases of rotary position embedding.
#pragma once

#include "ops/op_cases.h"
#include "unsloth/ops/rope.h"

namespace unsloth::testing {

/// y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin on halves, in fp64.
inline at::Tensor rope_oracle(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool backward) {
    const int64_t pairs = x.size(2) / 2;
    const at::Tensor x1 = x.narrow(2, 0, pairs), x2 = x.narrow(2, pairs, pairs);
    const at::Tensor c = cos.unsqueeze(1), s = backward ? -sin.unsqueeze(1) : sin.unsqueeze(1);
    return at::cat({x1 * c - x2 * s, x2 * c + x1 * s}, 2);
}

/// The angle is rounded to fp32, as transformers does; its cosine is taken in fp64.
inline Tensors rope_table_oracle(const at::Tensor& positions, const at::Tensor& inv_freq, double scaling) {
    const at::Tensor angle = positions.to(at::kFloat).unsqueeze(1) * inv_freq.to(at::kFloat).unsqueeze(0);
    return {angle.to(at::kDouble).cos() * scaling, angle.to(at::kDouble).sin() * scaling};
}

inline at::Tensor rope_frequencies(int64_t pairs, double base) {
    return (-at::arange(pairs, at::kDouble) / pairs * std::log(base)).exp().to(at::kFloat);
}

inline std::vector<OpCase> rope_cases(uint64_t seed) {
    at::manual_seed(seed);
    std::vector<OpCase> cases;
    for (const int64_t pairs : {1, 3, 64}) {
        for (const double scaling : {1.0, 1.3465735902799727}) {
            const int64_t tokens = 301;
            OpCase c;
            c.name = "rope_table " + case_name(pairs, scaling);
            c.args = {{"positions", at::randint(0, 131072, {tokens}, at::kInt)},
                      {"inv_freq", rope_frequencies(pairs, 500000.0)},
                      {"cos", at::full({tokens, pairs}, NAN), Role::output},
                      {"sin", at::full({tokens, pairs}, NAN), Role::output}};
            c.tolerance = Tolerance{4e-7, 2e-7, 0};
            c.run = [=](ops::Context& ctx, const Tensors& a) { ops::rope_table(ctx, a[0], a[1], scaling, a[2], a[3]); };
            c.expected = [=](const Tensors& a) { return rope_table_oracle(a[0], a[1], scaling); };
            cases.push_back(c);
        }
    }
    {
        const int64_t tokens = 57, pairs = 12;
        OpCase c;
        c.name = "rope_table by axes";
        c.args = {{"positions", at::randint(0, 4096, {tokens, 3}, at::kInt)},
                  {"inv_freq", rope_frequencies(pairs, 5000000.0)},
                  {"axis", at::arange(pairs, at::kInt).remainder(3).contiguous()},
                  {"cos", at::full({tokens, pairs}, NAN), Role::output},
                  {"sin", at::full({tokens, pairs}, NAN), Role::output}};
        c.tolerance = Tolerance{4e-7, 2e-7, 0};
        c.run = [](ops::Context& ctx, const Tensors& a) { ops::rope_table(ctx, a[0], a[1], 1.0, a[3], a[4], a[2]); };
        c.expected = [](const Tensors& a) {
            const at::Tensor each = a[0].index_select(1, a[2].to(at::kLong)).to(at::kFloat);
            const at::Tensor angle = (each * a[1].to(at::kFloat).unsqueeze(0)).to(at::kDouble);
            return Tensors{angle.cos(), angle.sin()};
        };
        cases.push_back(c);
    }
    const auto add = [&](int64_t tokens, int64_t heads, int64_t head_dim, at::ScalarType dtype, Layout layout) {
        const Tensors table =
            rope_table_oracle(at::randint(0, 4096, {tokens}, at::kInt), rope_frequencies(head_dim / 2, 10000.0), 1.0);
        // q and k of a fused buffer: `heads` adjacent heads, two value heads behind them.
        const at::Tensor qkv = slice_of(at::randn({tokens, heads + 2, head_dim}), dtype, layout);
        for (const bool backward : {false, true}) {
            OpCase c;
            c.name = std::string("rope_apply ") + (backward ? "backward " : "") +
                     case_name(tokens, heads, head_dim, c10::toString(dtype), name_of(layout));
            c.args = {{"x", qkv.narrow(1, 0, heads), Role::both},
                      {"cos", table[0].to(at::kFloat)},
                      {"sin", table[1].to(at::kFloat)}};
            c.run = [=](ops::Context& ctx, const Tensors& a) { ops::rope_apply(ctx, a[0], a[1], a[2], backward); };
            c.expected = [=](const Tensors& a) { return Tensors{rope_oracle(a[0], a[1], a[2], backward)}; };
            cases.push_back(c);
        }
    };
    for (const at::ScalarType dtype : compute_dtypes) {
        for (const Layout layout : all_layouts) {
            add(1, 1, 2, dtype, layout);
            add(5, 3, 6, dtype, layout);
            add(7, 5, 64, dtype, layout);
            add(3, 2, 80, dtype, layout);
            add(9, 40, 128, dtype, layout);
            add(2, 3, 256, dtype, layout);
            add(2, 2, 600, dtype, layout);  // more pairs than a warp has packs for, whatever the dtype
            add(0, 2, 16, dtype, layout);
        }
    }
    add(400, 10, 128, at::kBFloat16, Layout::wide);
    return cases;
}

}  // namespace unsloth::testing
