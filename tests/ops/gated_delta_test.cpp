#include "ops/gated_delta_cases.h"
#include "unsloth/core/error.h"

namespace unsloth {
namespace {

using testing::Tensors;

TEST(GatedDelta, MatchesAutogradOfTheRecurrenceInDoublePrecision) {
    testing::check_on_cpu(testing::gated_delta_cases(1));
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
}

}  // namespace
}  // namespace unsloth
