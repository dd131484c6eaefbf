#include "ops/cross_entropy_cases.h"
#include "ops/finite_differences.h"
#include "unsloth/core/error.h"

namespace unsloth {
namespace {

TEST(CrossEntropy, MatchesAutogradInDoublePrecision) {
    testing::check_on_cpu(testing::cross_entropy_cases(1));
}

TEST(CrossEntropy, GradientIsTheSlopeOfTheLoss) {
    at::manual_seed(2);
    ops::Context ctx(at::kCPU);
    spec::StepScalars scalars = testing::test_scalars();
    ctx.scalars = &scalars;
    const at::Tensor logits = at::randn({4, 30}), targets = at::randint(0, 30, {4}, at::kInt), losses = at::empty({4});
    const at::Tensor gradient = logits.clone();
    ops::cross_entropy(ctx, gradient, targets, losses, true);
    const double scale = double(scalars.inv_loss_divisor) * scalars.loss_scale;
    testing::expect_slope(logits, gradient, [&](const at::Tensor& moved) {
        ops::cross_entropy(ctx, moved.clone(), targets, losses, false);
        return losses.to(at::kDouble).sum().item<double>() * scale;
    });
}

TEST(CrossEntropy, MaskedLogitsTakeNoProbability) {
    ops::Context ctx(at::kCPU);
    const at::Tensor logits = at::full({1, 40}, -INFINITY);
    logits[0][20] = 2.f;
    logits[0][39] = 2.f;
    const at::Tensor losses = at::empty({1});
    ops::cross_entropy(ctx, logits, at::tensor({39}, at::kInt), losses, false);
    EXPECT_NEAR(losses[0].item<float>(), std::log(2.f), 1e-6);
}

TEST(CrossEntropy, NonFiniteLogitsGiveNonFiniteLosses) {
    ops::Context ctx(at::kCPU);
    for (const float poison : {NAN, INFINITY}) {
        const at::Tensor logits = at::zeros({1, 40}), losses = at::empty({1});
        logits[0][7] = poison;
        ops::cross_entropy(ctx, logits, at::tensor({3}, at::kInt), losses, false);
        EXPECT_FALSE(std::isfinite(losses[0].item<float>())) << poison;
    }
}

TEST(CrossEntropy, RefusesWrongTensors) {
    ops::Context ctx(at::kCPU);
    const at::Tensor logits = at::randn({2, 8}), losses = at::empty({2});
    EXPECT_THROW(ops::cross_entropy(ctx, logits, at::tensor({1, 8}, at::kInt), losses, false), CheckError);
    EXPECT_THROW(ops::cross_entropy(ctx, logits, at::tensor({-100, 1}, at::kInt), losses, false), CheckError);
    EXPECT_THROW(ops::cross_entropy(ctx, logits, at::tensor({1, 2}, at::kLong), losses, false), CheckError);
    EXPECT_THROW(ops::cross_entropy(ctx, logits, at::tensor({1, 2}, at::kInt), losses, true), CheckError)
        << "no scalars";
    EXPECT_THROW(ops::accumulate_loss(ctx, losses, {}), CheckError) << "no outcome";
    EXPECT_THROW(ops::argmax_rows(ctx, logits, at::empty({3}, at::kInt)), CheckError);
}

}  // namespace
}  // namespace unsloth
