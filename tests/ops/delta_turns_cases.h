// Cases of gated delta nets whose sequences are in parts: each resumes from what the one before left.
#pragma once

#include "ops/gated_delta_cases.h"

namespace unsloth::testing {

inline at::Tensor ints_on(const std::vector<int32_t>& values, at::Device device) {
    return at::tensor(values, at::kInt).to(device);
}

/// The last rows before each segment, [segments, w - 1, C], are inputs.
inline at::Tensor resumed_conv_oracle(const at::Tensor& x_TC, const at::Tensor& weight_Cw, const at::Tensor& before_SwC,
                                      const std::vector<int32_t>& lengths) {
    constexpr int64_t none = 0;  // of padding
    int64_t segment = 0;
    return by_segment(lengths, [&](int64_t first, int64_t length) {
        const at::Tensor rows = at::cat({before_SwC[segment++], x_TC.narrow(0, first, length)});
        if (length == 0) return x_TC.narrow(0, first, 0);
        const at::Tensor sums = at::conv1d(rows.t().unsqueeze(0), weight_Cw.unsqueeze(1), /*bias=*/{}, /*stride=*/1,
                                           at::IntArrayRef(none), /*dilation=*/1, x_TC.size(1));
        return at::silu(sums).squeeze(0).t();
    });
}

/// Segments take rows of `kept` in reverse order; one that no segment has stays as it is.
inline void add_resumed_conv_cases(std::vector<OpCase>& cases, const std::vector<int32_t>& lengths, int64_t channels,
                                   int64_t width, at::ScalarType dtype, Layout layout) {
    int64_t tokens = 0;
    for (const int32_t length : lengths) tokens += length;
    const auto segments = static_cast<int64_t>(lengths.size());
    std::vector<int32_t> places;
    for (int64_t s = segments - 1; s >= 0; --s) places.push_back(static_cast<int32_t>(s + 1));
    const std::string name = case_name(tokens, channels, width, c10::toString(dtype), name_of(layout));
    const Arg x{"x", slice_of(at::randn({tokens, channels}) * 2, dtype, layout)},
        weight{"weight", at::randn({channels, width})},
        kept{"kept", at::randn({segments + 1, width - 1, channels}).to(dtype)};
    const auto kept_of = [=](const at::Tensor& data) {
        return ops::KeptStates{data, places, ints_on(places, data.device()), /*read_only=*/true};
    };
    const auto before = [=](const at::Tensor& data) { return data.index_select(0, at::tensor(places, at::kInt)); };
    OpCase forward;
    forward.name = "short_conv_forward resumed " + name;
    forward.args = {x, weight, kept, {"y", poisoned_slice({tokens, channels}, dtype, layout), Role::output}};
    forward.run = [=](ops::Context& ctx, const Tensors& a) {
        ops::short_conv_forward(ctx, segments_of(lengths, ctx.device()), a[0], a[1], a[3], kept_of(a[2]));
    };
    forward.expected = [=](const Tensors& a) {
        return Tensors{resumed_conv_oracle(a[0], a[1], before(a[2]), lengths)};
    };
    cases.push_back(forward);

    OpCase backward;
    backward.name = "short_conv_backward resumed " + name;
    backward.args = {{"dy", slice_of(at::randn({tokens, channels}), dtype, layout)},
                     x,
                     weight,
                     kept,
                     {"dx", poisoned_slice({tokens, channels}, dtype, layout), Role::output},
                     {"dweight", at::randn({channels, width}), Role::both},
                     {"dkept", at::randn(kept.value.sizes()).to(dtype), Role::both}};
    backward.run = [=](ops::Context& ctx, const Tensors& a) {
        ops::short_conv_backward(ctx, segments_of(lengths, ctx.device()), a[0], a[1], a[2], a[4], a[5], kept_of(a[3]),
                                 a[6]);
    };
    backward.expected = [=](const Tensors& a) {
        const Tensors d = gradients_of({a[1], a[2], a[3]}, a[0], [&](const Tensors& in) {
            return resumed_conv_oracle(in[0], in[1], before(in[2]), lengths);
        });
        return Tensors{d[0], a[5] + d[1], at::cat({a[6].narrow(0, 0, 1), d[2].narrow(0, 1, segments)})};
    };
    cases.push_back(backward);
}

/// Sequences in parts, as many of each: its tokens and the states between them.
struct Parts {
    std::vector<std::vector<int32_t>> of_sequences;
    int turns() const { return static_cast<int>(of_sequences.front().size()); }
    int64_t sequences() const { return static_cast<int64_t>(of_sequences.size()); }
    std::vector<int32_t> segments() const {
        std::vector<int32_t> all;
        for (const std::vector<int32_t>& parts : of_sequences) all.insert(all.end(), parts.begin(), parts.end());
        return all;
    }
    std::vector<int32_t> lengths() const {
        std::vector<int32_t> all;
        for (const std::vector<int32_t>& parts : of_sequences)
            all.push_back(std::accumulate(parts.begin(), parts.end(), 0));
        return all;
    }
    int64_t tokens() const {
        const std::vector<int32_t> all = lengths();
        return std::accumulate(all.begin(), all.end(), int64_t{0});
    }
    /// A place for each sequence, and one more.
    ops::KeptStates states(const at::Tensor& data) const {
        std::vector<int32_t> places;
        for (int64_t s = 0; s < sequences(); ++s)
            places.insert(places.end(), static_cast<size_t>(turns()), static_cast<int32_t>(s));
        return {data, places, ints_on(places, data.device())};
    }
};

/// The outputs and the last states, one after the other, of sequences that begin with in[5].
inline at::Tensor resumed_rule_oracle(const ops::DeltaShape& shape, const Tensors& in,
                                      const std::vector<int32_t>& lengths) {
    Tensors last;
    const at::Tensor o = delta_rule_oracle(shape, in, lengths, &in[5], &last);
    return at::cat({o.flatten(), at::stack(last).flatten()});
}

/// The delta rule in turns, from given states to given gradients of the last ones: as whole sequences. One more place
/// of states stays as it is. States are small: sums of their products, whose terms cancel, are in the gates' gradients.
inline void add_delta_turns_cases(std::vector<OpCase>& cases, const ops::DeltaShape& shape, const Parts& parts,
                                  double pace, at::ScalarType dtype, Layout layout) {
    const int64_t tokens = parts.tokens(), heads = shape.value_heads, sequences = parts.sequences();
    const auto segments = static_cast<int64_t>(parts.segments().size());
    const std::vector<int64_t> out{tokens, heads, shape.value_dim},
        state{sequences + 1, heads, shape.key_dim, shape.value_dim};
    const std::string name =
        case_name(parts.turns(), "turns", tokens, heads, shape.key_dim, pace, c10::toString(dtype), name_of(layout));
    const std::vector<Arg> in = delta_rule_inputs(shape, tokens, pace, dtype, layout);
    OpCase forward;
    forward.name = "delta_rule_forward in " + name;
    forward.args = in;
    forward.args.push_back({"S", at::randn(state) * 0.05, Role::both});
    forward.args.push_back({"o", poisoned_slice(out, dtype, layout), Role::output});
    forward.run = [=](ops::Context& ctx, const Tensors& a) {
        ops::delta_rule_forward(ctx, shape, segments_of(parts.segments(), ctx.device()), delta_inputs_of(a), a[6],
                                parts.states(a[5]), {parts.turns()});
    };
    forward.expected = [=](const Tensors& a) {
        const at::Tensor all = resumed_rule_oracle(shape, a, parts.lengths());
        const int64_t of_o = c10::multiply_integers(out);
        return Tensors{at::cat({all.narrow(0, of_o, all.numel() - of_o).view({sequences, heads, shape.key_dim, -1}),
                                a[5].narrow(0, sequences, 1)}),
                       all.narrow(0, 0, of_o).view(out)};
    };
    forward.workspace = [=](at::Device device) {
        return ops::delta_rule_workspace(shape, dtype, device, tokens, segments, /*backward=*/true,
                                         layout != Layout::unaligned);
    };
    cases.push_back(forward);

    OpCase backward;
    backward.name = "delta_rule_backward in " + name;
    backward.args = in;
    backward.args.push_back({"S", at::randn(state) * 0.05});
    backward.args.push_back({"do", slice_of(at::randn(out), dtype, layout)});
    backward.args.push_back({"dS", at::randn(state) * 0.05, Role::both});
    for (const int i : {0, 1, 2})
        backward.args.push_back({"d" + in[static_cast<size_t>(i)].name,
                                 poisoned_slice(in[static_cast<size_t>(i)].value.sizes().vec(), dtype, layout),
                                 Role::output});
    backward.args.push_back({"da_log", at::randn({heads}), Role::both});
    backward.args.push_back({"ddt_bias", at::randn({heads}), Role::both});
    backward.run = [=](ops::Context& ctx, const Tensors& a) {
        const auto floats = at::TensorOptions(at::kFloat).device(ctx.device());
        const ops::Segments all = segments_of(parts.segments(), ctx.device());
        // What each part begins with is kept on the way forward.
        const at::Tensor running = a[5].clone(),
                         first = at::full({segments, heads, shape.key_dim, shape.value_dim}, std::nan(""), floats);
        const auto keep = [&](int turn) {
            for (int64_t s = 0; s < sequences; ++s) first[s * parts.turns() + turn].copy_(running[s]);
        };
        ops::delta_rule_forward(ctx, shape, all, delta_inputs_of(a), at::empty_like(a[6]), parts.states(running),
                                {parts.turns(), keep});
        std::vector<int32_t> own(static_cast<size_t>(segments));
        std::iota(own.begin(), own.end(), 0);
        const at::Tensor scratch = at::full({ops::delta_state_elements(shape, tokens, segments)}, std::nan(""), floats);
        ops::delta_rule_backward(
            ctx, shape, all, delta_inputs_of(a), a[6], scratch, {a[8], a[9], a[10], a[11], a[12]},
            {{first, own, ints_on(own, ctx.device()), /*read_only=*/true}, parts.states(a[7]), {parts.turns()}});
    };
    backward.expected = [=](const Tensors& a) {
        const at::Tensor dS = a[7].narrow(0, 0, sequences);
        Tensors d = gradients_of({a[0], a[1], a[2], a[3], a[4], a[5].narrow(0, 0, sequences)},
                                 at::cat({a[6].flatten(), dS.flatten()}),
                                 [&](const Tensors& x) { return resumed_rule_oracle(shape, x, parts.lengths()); });
        return Tensors{at::cat({d[5], a[7].narrow(0, sequences, 1)}), d[0], d[1], d[2], d[3] + a[11], d[4] + a[12]};
    };
    backward.workspace = forward.workspace;
    cases.push_back(backward);
}

inline std::vector<OpCase> delta_turns_cases(uint64_t seed) {
    at::manual_seed(seed);
    std::vector<OpCase> cases;
    const ops::DeltaShape usual{2, 4, 16, 24}, odd{1, 1, 5, 7}, wide{1, 3, 32, 8};
    for (const at::ScalarType dtype : compute_dtypes) {
        add_resumed_conv_cases(cases, {1}, 3, 4, dtype, Layout::packed);
        add_resumed_conv_cases(cases, {2, 7, 0, 1, 70}, 40, 4, dtype, Layout::wide);
        add_resumed_conv_cases(cases, {5, 0, 3, 0}, 9, 2, dtype, Layout::unaligned);
        add_delta_turns_cases(cases, usual, {{{3, 61}, {1, 0}, {70, 65}}}, 1, dtype, Layout::wide);
        add_delta_turns_cases(cases, odd, {{{1, 2, 130}}}, 0.02, dtype, Layout::unaligned);
        add_delta_turns_cases(cases, wide, {{{64, 1, 63}, {3, 0, 5}}}, 20, dtype, Layout::packed);
    }
    return cases;
}

}  // namespace unsloth::testing
