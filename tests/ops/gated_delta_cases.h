// Cases of gated delta nets.
#pragma once

#include "ops/op_cases.h"
#include "unsloth/ops/gated_delta.h"

namespace unsloth::testing {

/// Segments of these lengths, whose queries are their keys.
inline ops::Segments segments_of(const std::vector<int32_t>& lengths, at::Device device) {
    ops::Segments segments;
    segments.q_offsets = {0};
    for (const int32_t length : lengths) {
        segments.q_offsets.push_back(segments.q_offsets.back() + length);
        segments.max_q = std::max(segments.max_q, length);
    }
    segments.k_offsets = segments.q_offsets;
    segments.max_k = segments.max_q;
    segments.q_offsets_device = segments.k_offsets_device = at::tensor(segments.q_offsets, at::kInt).to(device);
    return segments;
}

/// f of each segment's rows, one below another.
template <class F>
at::Tensor by_segment(const std::vector<int32_t>& lengths, const F& f) {
    Tensors parts;
    int64_t first = 0;
    for (const int32_t length : lengths) {
        parts.push_back(f(first, length));
        first += length;
    }
    return at::cat(parts);
}

inline at::Tensor short_conv_oracle(const at::Tensor& x_TC, const at::Tensor& weight_Cw,
                                    const std::vector<int32_t>& lengths) {
    const int64_t channels = x_TC.size(1), width = weight_Cw.size(1);
    return by_segment(lengths, [&](int64_t first, int64_t length) {
        const at::Tensor x_1CT = x_TC.narrow(0, first, length).t().unsqueeze(0);
        const at::Tensor sums = at::conv1d(x_1CT, weight_Cw.unsqueeze(1), {}, 1, width - 1, 1, channels);
        return at::silu(sums.narrow(2, 0, length)).squeeze(0).t();
    });
}

/// The recurrence itself, a token after the other. `first_states`: of the segments, zeros without;
/// `last_states`: gets theirs after it.
inline at::Tensor delta_rule_oracle(const ops::DeltaShape& shape, const Tensors& in,
                                    const std::vector<int32_t>& lengths, const at::Tensor* first_states = nullptr,
                                    Tensors* last_states = nullptr) {
    const auto heads = [&](int64_t begin, int64_t count, int64_t size) {
        return in[0].narrow(1, begin, count * size).reshape({in[0].size(0), count, size});
    };
    const int64_t served = shape.value_heads / shape.key_heads;
    const auto direction = [&](const at::Tensor& x) {
        return (x / (x.square().sum(-1, true) + 1e-6).sqrt()).repeat_interleave(served, 1);
    };
    const at::Tensor q = direction(heads(0, shape.key_heads, shape.key_dim)) / std::sqrt(shape.key_dim),
                     k = direction(heads(shape.keys(), shape.key_heads, shape.key_dim)),
                     v = heads(2 * shape.keys(), shape.value_heads, shape.value_dim), beta = at::sigmoid(in[1]),
                     decay = at::exp(-at::exp(in[3]) * at::softplus(in[2] + in[4]));
    int64_t segment = 0;
    return by_segment(lengths, [&](int64_t first, int64_t length) {
        at::Tensor S = first_states != nullptr
                           ? (*first_states)[segment++]
                           : at::zeros({shape.value_heads, shape.key_dim, shape.value_dim}, in[0].options());
        Tensors out;
        for (int64_t t = first; t < first + length; ++t) {
            S = S * decay[t].view({-1, 1, 1});
            const at::Tensor delta = beta[t].unsqueeze(1) * (v[t] - (S * k[t].unsqueeze(2)).sum(1));
            S = S + k[t].unsqueeze(2) * delta.unsqueeze(1);
            out.push_back((S * q[t].unsqueeze(2)).sum(1));
        }
        if (last_states != nullptr) last_states->push_back(S);
        return at::stack(out);
    });
}

/// What autograd gives for these inputs; the others are constants.
inline Tensors gradients_of(const Tensors& in, const at::Tensor& dy,
                            const std::function<at::Tensor(const Tensors&)>& f) {
    Tensors leaves, gradients;
    for (const at::Tensor& x : in) leaves.push_back(x.detach().clone().requires_grad_());
    f(leaves).backward(dy);
    for (const at::Tensor& leaf : leaves) gradients.push_back(leaf.grad());
    return gradients;
}

inline void add_short_conv_cases(std::vector<OpCase>& cases, const std::vector<int32_t>& lengths, int64_t channels,
                                 int64_t width, at::ScalarType dtype, Layout layout) {
    int64_t tokens = 0;
    for (const int32_t length : lengths) tokens += length;
    const std::string name = case_name(tokens, channels, width, c10::toString(dtype), name_of(layout));
    const Arg x{"x", slice_of(at::randn({tokens, channels}) * 2, dtype, layout)},
        weight{"weight", at::randn({channels, width})};
    OpCase forward;
    forward.name = "short_conv_forward " + name;
    forward.args = {x, weight, {"y", poisoned_slice({tokens, channels}, dtype, layout), Role::output}};
    forward.run = [=](ops::Context& ctx, const Tensors& a) {
        ops::short_conv_forward(ctx, segments_of(lengths, ctx.device()), a[0], a[1], a[2]);
    };
    forward.expected = [=](const Tensors& a) { return Tensors{short_conv_oracle(a[0], a[1], lengths)}; };
    cases.push_back(forward);

    OpCase backward;
    backward.name = "short_conv_backward " + name;
    backward.args = {{"dy", slice_of(at::randn({tokens, channels}), dtype, layout)},
                     x,
                     weight,
                     {"dx", poisoned_slice({tokens, channels}, dtype, layout), Role::output},
                     {"dweight", at::randn({channels, width}), Role::both}};
    backward.run = [=](ops::Context& ctx, const Tensors& a) {
        ops::short_conv_backward(ctx, segments_of(lengths, ctx.device()), a[0], a[1], a[2], a[3], a[4]);
    };
    backward.expected = [=](const Tensors& a) {
        const Tensors d = gradients_of({a[1], a[2]}, a[0],
                                       [&](const Tensors& in) { return short_conv_oracle(in[0], in[1], lengths); });
        return Tensors{d[0], a[4] + d[1]};
    };
    cases.push_back(backward);
}

/// `pace`: of the decay, exp(a_log): 0.02 forgets over a thousand tokens, 20 within one.
inline std::vector<Arg> delta_rule_inputs(const ops::DeltaShape& shape, int64_t tokens, double pace,
                                          at::ScalarType dtype, Layout layout) {
    const int64_t heads = shape.value_heads;
    return {{"mixed", slice_of(at::randn({tokens, shape.channels()}), dtype, layout)},
            {"b", slice_of(at::randn({tokens, heads}) * 2, dtype, layout)},
            {"a", slice_of(at::randn({tokens, heads}), dtype, layout)},
            {"a_log", at::randn({heads}) * 0.3 + std::log(pace)},
            {"dt_bias", at::randn({heads})}};
}
inline ops::DeltaInputs delta_inputs_of(const Tensors& a) {
    return {a[0], a[1], a[2], a[3], a[4]};
}

inline void add_delta_rule_cases(std::vector<OpCase>& cases, const ops::DeltaShape& shape,
                                 const std::vector<int32_t>& lengths, double pace, at::ScalarType dtype,
                                 Layout layout) {
    int64_t tokens = 0;
    for (const int32_t length : lengths) tokens += length;
    const int64_t heads = shape.value_heads;
    const std::string name = case_name(tokens, shape.key_heads, heads, shape.key_dim, shape.value_dim, pace,
                                       c10::toString(dtype), name_of(layout));
    const std::vector<int64_t> out{tokens, heads, shape.value_dim};
    const std::vector<Arg> in = delta_rule_inputs(shape, tokens, pace, dtype, layout);
    OpCase forward;
    forward.name = "delta_rule_forward " + name;
    forward.args = in;
    forward.args.push_back({"o", poisoned_slice(out, dtype, layout), Role::output});
    forward.run = [=](ops::Context& ctx, const Tensors& a) {
        ops::delta_rule_forward(ctx, shape, segments_of(lengths, ctx.device()), delta_inputs_of(a), a[5]);
    };
    forward.expected = [=](const Tensors& a) { return Tensors{delta_rule_oracle(shape, a, lengths)}; };
    forward.workspace = [=](at::Device device) {
        return ops::delta_rule_workspace(shape, dtype, device, tokens, static_cast<int64_t>(lengths.size()),
                                         /*backward=*/true, layout != Layout::unaligned);
    };
    cases.push_back(forward);

    OpCase backward;
    backward.name = "delta_rule_backward " + name;
    backward.args = in;
    const int64_t states = ops::delta_state_elements(shape, tokens, static_cast<int64_t>(lengths.size()));
    backward.args.push_back({"do", slice_of(at::randn(out), dtype, layout)});
    for (const int i : {0, 1, 2})
        backward.args.push_back({"d" + in[static_cast<size_t>(i)].name,
                                 poisoned_slice(in[static_cast<size_t>(i)].value.sizes().vec(), dtype, layout),
                                 Role::output});
    backward.args.push_back({"da_log", at::randn({heads}), Role::both});
    backward.args.push_back({"ddt_bias", at::randn({heads}), Role::both});
    backward.run = [=](ops::Context& ctx, const Tensors& a) {
        const at::Tensor scratch = at::full({states}, std::nan(""), at::TensorOptions(at::kFloat).device(ctx.device()));
        ops::delta_rule_backward(ctx, shape, segments_of(lengths, ctx.device()), delta_inputs_of(a), a[5], scratch,
                                 {a[6], a[7], a[8], a[9], a[10]});
    };
    backward.expected = [=](const Tensors& a) {
        Tensors d = gradients_of({a[0], a[1], a[2], a[3], a[4]}, a[5],
                                 [&](const Tensors& x) { return delta_rule_oracle(shape, x, lengths); });
        d[3] += a[9];
        d[4] += a[10];
        return d;
    };
    backward.workspace = forward.workspace;
    cases.push_back(backward);
}

/// The gated norm, and attention's gate: of [T, H, d] with heads apart from each other.
inline void add_gate_cases(std::vector<OpCase>& cases, int64_t tokens, int64_t heads, int64_t size,
                           at::ScalarType dtype) {
    const std::vector<int64_t> shape{tokens, heads, size};
    const std::string name = case_name(tokens, heads, size, c10::toString(dtype));
    const auto values = [&] { return at::randn({tokens, heads, 2 * size}).to(dtype).narrow(2, 0, size) * 2; };
    const auto empty = [&] { return at::full(shape, std::nan("")).to(dtype); };
    const Arg x{"x", values()}, z{"z", values()}, weight{"weight", at::randn({size})}, dy{"dy", values()};
    const auto norm = [](const Tensors& a) {
        return a[0] / (a[0].square().mean(-1, true) + 1e-5).sqrt() * a[2] * at::silu(a[1]);
    };
    const auto gate = [](const Tensors& a) { return a[0] * at::sigmoid(a[1]); };
    cases.push_back(
        {.name = "gated_norm_forward " + name,
         .args = {x, z, weight, {"y", empty(), Role::output}},
         .run = [](ops::Context& ctx, const Tensors& a) { ops::gated_norm_forward(ctx, a[0], a[1], a[2], 1e-5, a[3]); },
         .expected = [=](const Tensors& a) { return Tensors{norm(a)}; }});
    cases.push_back(
        {.name = "gated_norm_backward " + name,
         .args = {x,
                  {"z", z.value, Role::both},
                  weight,
                  {"dy", dy.value, Role::both},
                  {"dweight", at::randn({size}), Role::both}},
         .run = [](ops::Context& ctx,
                   const Tensors& a) { ops::gated_norm_backward(ctx, a[3], a[0], a[1], a[2], 1e-5, a[3], a[1], a[4]); },
         .expected =
             [=](const Tensors& a) {
                 const Tensors d = gradients_of({a[0], a[1], a[2]}, a[3], norm);
                 return Tensors{d[1], d[0], a[4] + d[2]};
             },
         .workspace = [=](at::Device device) { return ops::gated_norm_workspace(device, size); }});
    Tolerance tolerance = tolerance_of(dtype);
    // Terms cancel that are of the order of dy / rms(x): of a head of one value, all of them do.
    const double inverse_rms = (x.value.to(at::kDouble).square().mean(-1) + 1e-5).rsqrt().max().item<double>();
    tolerance.floor = std::max(tolerance.floor, 5e-7 * std::max(1.0, inverse_rms));
    cases.back().tolerance = tolerance;
    cases.push_back(
        {.name = "sigmoid_gate_forward " + name,
         .args = {x, z, {"y", empty(), Role::output}},
         .run = [](ops::Context& ctx, const Tensors& a) { ops::sigmoid_gate_forward(ctx, a[0], a[1], a[2]); },
         .expected = [=](const Tensors& a) { return Tensors{gate(a)}; }});
    cases.push_back({.name = "sigmoid_gate_backward " + name,
                     .args = {x, {"z", z.value, Role::both}, {"dy", dy.value, Role::both}},
                     .run = [](ops::Context& ctx,
                               const Tensors& a) { ops::sigmoid_gate_backward(ctx, a[2], a[0], a[1], a[2], a[1]); },
                     .expected =
                         [=](const Tensors& a) {
                             const Tensors d = gradients_of({a[0], a[1]}, a[2], gate);
                             return Tensors{d[1], d[0]};
                         }});
}

inline std::vector<OpCase> gated_delta_cases(uint64_t seed) {
    at::manual_seed(seed);
    std::vector<OpCase> cases;
    const ops::DeltaShape usual{2, 4, 16, 24}, odd{1, 1, 5, 7}, wide{1, 3, 32, 8};
    for (const at::ScalarType dtype : compute_dtypes) {
        add_short_conv_cases(cases, {1}, 3, 4, dtype, Layout::packed);
        add_short_conv_cases(cases, {2, 7, 1, 70}, 40, 4, dtype, Layout::wide);
        add_short_conv_cases(cases, {5, 3}, 9, 2, dtype, Layout::unaligned);
        add_delta_rule_cases(cases, odd, {1}, 1, dtype, Layout::packed);
        add_delta_rule_cases(cases, usual, {3, 64, 65}, 1, dtype, Layout::wide);
        add_delta_rule_cases(cases, wide, {130, 1}, 0.02, dtype, Layout::packed);
        add_delta_rule_cases(cases, odd, {63, 129}, 20, dtype, Layout::unaligned);
        add_gate_cases(cases, 1, 1, 1, dtype);
        add_gate_cases(cases, 9, 3, 24, dtype);
        add_gate_cases(cases, 70, 2, 129, dtype);
    }
    add_delta_rule_cases(cases, {1, 2, 128, 128}, {200}, 0.1, at::kFloat, Layout::packed);
    return cases;
}

}  // namespace unsloth::testing
