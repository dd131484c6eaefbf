#include "ops/finite_differences.h"
#include "ops/swiglu_cases.h"
#include "unsloth/core/error.h"

namespace unsloth {
namespace {

TEST(Swiglu, MatchesAutogradInDoublePrecision) {
    testing::check_on_cpu(testing::swiglu_cases(1));
}

TEST(Swiglu, BackwardIsTheSlopeOfForward) {
    at::manual_seed(2);
    ops::Context ctx(at::kCPU);
    const at::Tensor gu = at::randn({3, 20}), dact = at::randn({3, 10}), act = at::empty({3, 10});
    const at::Tensor gradient = gu.clone();
    ops::swiglu_backward(ctx, dact, gradient);
    testing::expect_slope(gu, gradient, [&](const at::Tensor& moved) {
        ops::swiglu_forward(ctx, moved, act);
        return (act.to(at::kDouble) * dact).sum().item<double>();
    });
}

TEST(Swiglu, SaturatesWithoutOverflow) {
    ops::Context ctx(at::kCPU);
    const at::Tensor gu = at::tensor({-200.f, 200.f, 3.f, 3.f}).view({1, 4});
    const at::Tensor act = at::empty({1, 2});
    ops::swiglu_forward(ctx, gu, act);
    EXPECT_EQ(act[0][0].item<float>(), 0.f);
    EXPECT_EQ(act[0][1].item<float>(), 600.f);
}

TEST(Swiglu, BackwardRebuildsTheForwardsBits) {
    testing::expect_swiglu_rebuilds_bits(at::kCPU);
}

TEST(Swiglu, RefusesWrongTensors) {
    ops::Context ctx(at::kCPU);
    const at::Tensor gu = at::randn({4, 16}), act = at::empty({4, 8});
    EXPECT_NO_THROW(ops::swiglu_forward(ctx, gu, act));
    EXPECT_THROW(ops::swiglu_forward(ctx, at::randn({4, 15}), act), CheckError);
    EXPECT_THROW(ops::swiglu_forward(ctx, gu.to(at::kHalf), act), CheckError);
    EXPECT_THROW(ops::swiglu_backward(ctx, at::empty({3, 8}), gu), CheckError);
}

}  // namespace
}  // namespace unsloth
