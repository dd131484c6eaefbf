#include "ops/rope_cases.h"
#include "unsloth/core/error.h"

namespace unsloth {
namespace {

TEST(Rope, MatchesDoublePrecision) {
    testing::check_on_cpu(testing::rope_cases(1));
}

TEST(Rope, BackwardUndoesForwardAndKeepsLengths) {
    at::manual_seed(2);
    ops::Context ctx(at::kCPU);
    const at::Tensor positions = at::arange(6, at::kInt), inv_freq = testing::rope_frequencies(8, 10000.0);
    const at::Tensor cos = at::empty({6, 8}), sin = at::empty({6, 8});
    ops::rope_table(ctx, positions, inv_freq, 1.0, cos, sin);
    const at::Tensor x = at::randn({6, 3, 16}), rotated = x.clone();
    ops::rope_apply(ctx, rotated, cos, sin, false);
    EXPECT_TRUE(at::equal(rotated[0], x[0])) << "position 0 does not turn";
    EXPECT_GT((rotated[5] - x[5]).abs().max().item<float>(), 0.1f);
    EXPECT_TRUE(at::allclose(rotated.norm(2, {-1}), x.norm(2, {-1})));
    ops::rope_apply(ctx, rotated, cos, sin, true);
    EXPECT_TRUE(at::allclose(rotated, x, 1e-5, 1e-6));
}

TEST(Rope, ScoresDependOnTheDistanceOnly) {
    at::manual_seed(3);
    ops::Context ctx(at::kCPU);
    const at::Tensor positions = at::tensor({3, 10, 103, 110}, at::kInt);
    const at::Tensor cos = at::empty({4, 16}), sin = at::empty({4, 16});
    ops::rope_table(ctx, positions, testing::rope_frequencies(16, 10000.0), 1.0, cos, sin);
    const at::Tensor q = at::randn({1, 1, 32}).expand({4, 1, 32}).clone(),
                     k = at::randn({1, 1, 32}).expand({4, 1, 32}).clone();
    ops::rope_apply(ctx, q, cos, sin, false);
    ops::rope_apply(ctx, k, cos, sin, false);
    const double near = (q[0] * k[1]).sum().item<double>(), far = (q[2] * k[3]).sum().item<double>();
    EXPECT_NEAR(near, far, 1e-4);
}

TEST(Rope, RefusesWrongTensors) {
    ops::Context ctx(at::kCPU);
    const at::Tensor cos = at::empty({4, 8}), sin = at::empty({4, 8});
    EXPECT_THROW(ops::rope_apply(ctx, at::randn({4, 2, 15}), cos, sin, false), CheckError);
    EXPECT_THROW(ops::rope_apply(ctx, at::randn({5, 2, 16}), cos, sin, false), CheckError);
    EXPECT_THROW(ops::rope_apply(ctx, at::randn({4, 2, 16}), cos.to(at::kHalf), sin, false), CheckError);
    EXPECT_THROW(ops::rope_table(ctx, at::arange(4), at::ones({8}), 1.0, cos, sin), CheckError)
        << "positions are int32";
}

}  // namespace
}  // namespace unsloth
