#include "ops/delta_turns_cases.h"
#include "unsloth/core/error.h"

namespace unsloth {
namespace {

using testing::Tensors;

TEST(GatedDelta, MatchesAutogradOfTheRecurrenceInDoublePrecision) {
    testing::check_on_cpu(testing::gated_delta_cases(1));
}

TEST(GatedDelta, PartsInTurnsAreTheWholeSequence) {
    testing::check_on_cpu(testing::delta_turns_cases(4));
}

/// Segments are as alone, bit for bit.
TEST(GatedDelta, SegmentsDoNotSeeEachOther) {
    at::manual_seed(2);
    ops::Context ctx(at::kCPU);
    const ops::DeltaShape shape{2, 4, 8, 6};
    const std::vector<int32_t> lengths = {70, 1, 30};
    const ops::DeltaInputs in{at::randn({101, shape.channels()}), at::randn({101, 4}), at::randn({101, 4}),
                              at::randn({4}), at::randn({4})};
    const at::Tensor weight = at::randn({shape.channels(), 4}), convolved = at::empty_like(in.mixed_TC),
                     o = at::empty({101, 4, 6});
    ops::short_conv_forward(ctx, testing::segments_of(lengths, at::kCPU), in.mixed_TC, weight, convolved);
    ops::delta_rule_forward(ctx, shape, testing::segments_of(lengths, at::kCPU), in, o);
    int64_t first = 0;
    for (const int32_t length : lengths) {
        const auto part = [&](const at::Tensor& x) { return x.narrow(0, first, length); };
        const at::Tensor alone = at::empty({length, 4, 6}), convolved_alone = at::empty({length, shape.channels()});
        const ops::Segments one = testing::segments_of({length}, at::kCPU);
        ops::short_conv_forward(ctx, one, part(in.mixed_TC), weight, convolved_alone);
        ops::delta_rule_forward(ctx, shape, one,
                                {part(in.mixed_TC), part(in.b_TH), part(in.a_TH), in.a_log_H, in.dt_bias_H}, alone);
        EXPECT_TRUE(at::equal(part(convolved), convolved_alone)) << length;
        EXPECT_TRUE(at::equal(part(o), alone)) << length;
        first += length;
    }
}

/// In pieces, each of which goes on from what the one before kept, next to another sequence: the same bits.
TEST(GatedDelta, GoesOnFromWhatWasKept) {
    at::manual_seed(3);
    ops::Context ctx(at::kCPU);
    const ops::DeltaShape shape{2, 4, 8, 6};
    const at::Tensor x = at::randn({2, 9, shape.channels()}), b = at::randn({2, 9, 4}), a = at::randn({2, 9, 4}),
                     a_log = at::randn({4}), dt_bias = at::randn({4}), weight = at::randn({shape.channels(), 4});
    const auto run = [&](const at::Tensor& x_TC, const at::Tensor& b_TH, const at::Tensor& a_TH, int32_t tokens,
                         const ops::KeptStates& inputs, const ops::KeptStates& states) {
        const ops::Segments segments = testing::segments_of({tokens, tokens}, at::kCPU);
        const at::Tensor mixed = at::empty_like(x_TC), o = at::empty({2 * tokens, 4, 6});
        ops::short_conv_forward(ctx, segments, x_TC, weight, mixed, inputs);
        ops::delta_rule_forward(ctx, shape, segments, {mixed, b_TH, a_TH, a_log, dt_bias}, o, states);
        return o.view({2, tokens, 4, 6});
    };
    const at::Tensor whole = run(x.view({18, -1}), b.view({18, 4}), a.view({18, 4}), 9, {}, {});
    const std::vector<int32_t> places = {2, 0};
    const ops::KeptStates inputs{at::zeros({4, 3, shape.channels()}), places, {}},
        states{at::zeros({4, 4, 8, 6}), places, {}};
    std::vector<at::Tensor> parts;
    int64_t first = 0;
    for (const int32_t tokens : {1, 2, 1, 5}) {
        const auto piece = [&](const at::Tensor& all) {
            return all.narrow(1, first, tokens).contiguous().view({2 * tokens, -1});
        };
        parts.push_back(run(piece(x), piece(b), piece(a), tokens, inputs, states));
        first += tokens;
    }
    EXPECT_TRUE(at::equal(at::cat(parts, 1), whole));
    for (const at::Tensor& data : {inputs.data, states.data}) {
        EXPECT_FALSE(at::equal(data[0], at::zeros_like(data[0])));
        EXPECT_TRUE(at::equal(data[1], at::zeros_like(data[1])));
    }
    // The last place keeps nothing.
    const ops::KeptStates nobodys{inputs.data.clone(), {3, 3}, {}}, no_state{states.data.clone(), {3, 3}, {}};
    EXPECT_TRUE(at::equal(run(x.view({18, -1}), b.view({18, 4}), a.view({18, 4}), 9, nobodys, no_state), whole));
    EXPECT_TRUE(at::equal(nobodys.data, inputs.data) && at::equal(no_state.data, states.data));
    EXPECT_THROW(run(x.view({18, -1}), b.view({18, 4}), a.view({18, 4}), 9, {inputs.data, {0, 4}, {}}, states),
                 CheckError);
}

/// A decay of nothing and one of everything: no infinity, no NaN.
TEST(GatedDelta, ExtremeGatesStayFinite) {
    ops::Context ctx(at::kCPU);
    const ops::DeltaShape shape{1, 1, 4, 4};
    for (const float gate : {-200.F, 200.F}) {
        const ops::DeltaInputs in{at::zeros({5, shape.channels()}), at::full({5, 1}, gate), at::full({5, 1}, gate),
                                  at::full({1}, 3.F), at::zeros({1})};
        const at::Tensor o = at::empty({5, 1, 4});
        ops::delta_rule_forward(ctx, shape, testing::segments_of({5}, at::kCPU), in, o);
        EXPECT_TRUE(o.isfinite().all().item<bool>()) << gate;
        const at::Tensor states = at::empty({ops::delta_state_elements(shape, 5, 1)});
        const ops::DeltaGradients out{at::empty_like(in.mixed_TC), at::empty({5, 1}), at::empty({5, 1}), at::zeros({1}),
                                      at::zeros({1})};
        ops::delta_rule_backward(ctx, shape, testing::segments_of({5}, at::kCPU), in, at::ones({5, 1, 4}), states, out);
        for (const at::Tensor& x : {out.mixed_TC, out.b_TH, out.a_TH, out.a_log_H, out.dt_bias_H})
            EXPECT_TRUE(x.isfinite().all().item<bool>()) << gate;
    }
}

TEST(GatedDelta, RefusesWrongTensors) {
    ops::Context ctx(at::kCPU);
    const ops::Segments segments = testing::segments_of({4}, at::kCPU);
    const ops::DeltaShape shape{1, 2, 4, 4};
    const ops::DeltaInputs in{at::randn({4, shape.channels()}), at::randn({4, 2}), at::randn({4, 2}), at::randn({2}),
                              at::randn({2})};
    const at::Tensor o = at::empty({4, 2, 4});
    EXPECT_NO_THROW(ops::delta_rule_forward(ctx, shape, segments, in, o));
    EXPECT_THROW(ops::delta_rule_forward(ctx, {2, 3, 4, 4}, segments, in, o), CheckError);
    EXPECT_THROW(ops::delta_rule_forward(ctx, shape, testing::segments_of({5}, at::kCPU), in, o), CheckError);
    EXPECT_THROW(ops::short_conv_forward(ctx, segments, in.mixed_TC, at::randn({3, 4}), at::empty_like(in.mixed_TC)),
                 CheckError);
    EXPECT_THROW(ops::delta_rule_backward(ctx, shape, segments, in, o, at::empty({3}), {}), CheckError);
    const ops::KeptStates written{at::zeros({2, 3, shape.channels()}), {0}, {}};
    EXPECT_THROW(ops::short_conv_backward(ctx, segments, in.mixed_TC, in.mixed_TC, at::randn({shape.channels(), 4}),
                                          at::empty_like(in.mixed_TC), {}, written, at::empty_like(written.data)),
                 CheckError);
}

}  // namespace
}  // namespace unsloth
