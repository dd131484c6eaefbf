// Cases of SwiGLU.
#pragma once

#include "ops/op_cases.h"
#include "unsloth/ops/swiglu.h"

namespace unsloth::testing {

inline at::Tensor swiglu_oracle(const at::Tensor& gu, spec::GateActivation activation = spec::GateActivation::silu,
                                double limit = spec::default_gate_limit) {
    using enum spec::GateActivation;
    const at::Tensor gate = gu.chunk(2, 1)[0], up = gu.chunk(2, 1)[1];
    if (activation == silu) return at::silu(gate) * up;
    if (activation == gelu_tanh) return at::gelu(gate, "tanh") * up;
    const at::Tensor clamped = gate.clamp_max(limit);  // as transformers' GptOssExperts
    return (up.clamp(-limit, limit) + 1) * (clamped * at::sigmoid(clamped * 1.702));
}

inline std::vector<OpCase> swiglu_cases(uint64_t seed) {
    at::manual_seed(seed);
    std::vector<OpCase> cases;
    const auto add = [&](int64_t tokens, int64_t columns, at::ScalarType dtype, Layout layout,
                         spec::GateActivation activation = spec::GateActivation::silu) {
        const float limit = 2.5F;  // of the clamped one
        const std::string name =
            case_name(tokens, columns, c10::toString(dtype), name_of(layout), static_cast<int>(activation));
        // Factors up to 30: the sigmoid saturates on both sides.
        const at::Tensor gu = slice_of(at::randn({tokens, 2 * columns}) * (at::rand({tokens, 1}) * 30), dtype, layout);
        OpCase forward;
        forward.name = "swiglu_forward " + name;
        forward.args = {{"gate_up", gu}, {"act", poisoned_slice({tokens, columns}, dtype, layout), Role::output}};
        forward.run = [=](ops::Context& ctx, const Tensors& a) {
            ops::swiglu_forward(ctx, a[0], a[1], {}, activation, limit);
        };
        forward.expected = [=](const Tensors& a) { return Tensors{swiglu_oracle(a[0], activation, limit)}; };
        cases.push_back(forward);

        OpCase backward;
        backward.name = "swiglu_backward " + name;
        backward.args = {{"dact", slice_of(at::randn({tokens, columns}), dtype, layout)}, {"gate_up", gu, Role::both}};
        backward.run = [=](ops::Context& ctx, const Tensors& a) {
            ops::swiglu_backward(ctx, a[0], a[1], {}, {}, false, activation, limit);
        };
        backward.expected = [=](const Tensors& a) {
            const at::Tensor leaf = a[1].detach().clone().requires_grad_();
            swiglu_oracle(leaf, activation, limit).backward(a[0]);
            return Tensors{leaf.grad()};
        };
        cases.push_back(backward);

        // With the activation rebuilt: beside dact, and in its place.
        OpCase rebuild = backward;
        rebuild.name = "swiglu_backward, act " + name;
        rebuild.args.push_back({"act", poisoned_slice({tokens, columns}, dtype, layout), Role::output});
        rebuild.run = [=](ops::Context& ctx, const Tensors& a) {
            ops::swiglu_backward(ctx, a[0], a[1], a[2], {}, false, activation, limit);
        };
        rebuild.expected = [=, gradient = backward.expected](const Tensors& a) {
            return Tensors{gradient(a)[0], swiglu_oracle(a[1], activation, limit)};
        };
        cases.push_back(rebuild);

        OpCase in_place = backward;
        in_place.name = "swiglu_backward, act over dact " + name;
        in_place.args[0].role = Role::both;
        in_place.run = [=](ops::Context& ctx, const Tensors& a) {
            ops::swiglu_backward(ctx, a[0], a[1], a[0], {}, false, activation, limit);
        };
        in_place.expected = [=, gradient = backward.expected](const Tensors& a) {
            return Tensors{swiglu_oracle(a[1], activation, limit), gradient(a)[0]};
        };
        cases.push_back(in_place);
    };
    for (const at::ScalarType dtype : compute_dtypes) {
        for (const Layout layout : all_layouts) {
            add(1, 1, dtype, layout);
            add(3, 7, dtype, layout);
            add(5, 64, dtype, layout);
            add(2, 100, dtype, layout);
            add(70, 24, dtype, layout);
            add(9, 2312, dtype, layout);
            add(0, 16, dtype, layout);
        }
        add(5, 64, dtype, Layout::wide, spec::GateActivation::clamped_silu);
        add(3, 7, dtype, Layout::unaligned, spec::GateActivation::clamped_silu);
        add(5, 64, dtype, Layout::wide, spec::GateActivation::gelu_tanh);
    }
    add(700, 776, at::kBFloat16, Layout::wide);
    return cases;
}

/// The rebuilt activation has the forward's bits, and the gradient those of a backward without it.
inline void expect_swiglu_rebuilds_bits(at::Device device) {
    at::manual_seed(9);
    ops::Context ctx(device);
    for (const int64_t columns : {7, 776}) {
        const at::Tensor gu = at::randn({50, 2 * columns}).to(device, at::kBFloat16) * 3;
        const at::Tensor dact = at::randn({50, columns}).to(device, at::kBFloat16);
        const at::Tensor act = at::empty_like(dact), plain = gu.clone(), fused = gu.clone(), rebuilt = dact.clone();
        ops::swiglu_forward(ctx, gu, act);
        ops::swiglu_backward(ctx, dact, plain);
        ops::swiglu_backward(ctx, rebuilt, fused, rebuilt);
        EXPECT_TRUE(same_bits(rebuilt.cpu(), act.cpu())) << columns;
        EXPECT_TRUE(same_bits(fused.cpu(), plain.cpu())) << columns;
    }
}

}  // namespace unsloth::testing
