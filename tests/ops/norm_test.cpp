#include <ATen/Parallel.h>

#include "ops/finite_differences.h"
#include "ops/norm_cases.h"
#include "unsloth/core/error.h"

namespace unsloth {
namespace {

using testing::Tensors;

TEST(Norm, MatchesAutogradInDoublePrecision) {
    testing::check_on_cpu(testing::norm_cases(1));
}

TEST(Norm, BackwardIsTheSlopeOfForward) {
    at::manual_seed(2);
    ops::Context ctx(at::kCPU);
    const at::Tensor x = at::randn({4, 24}), weight = at::randn({24}), dy = at::randn({4, 24});
    const at::Tensor y = at::empty({4, 24}), rstd = at::empty({4});
    const auto loss = [&](const at::Tensor& at_x, const at::Tensor& at_weight) {
        ops::rms_norm_forward(ctx, at_x, at_weight, 1e-5, y, rstd);
        return (y.to(at::kDouble) * dy).sum().item<double>();
    };
    loss(x, weight);
    const at::Tensor dx = at::zeros({4, 24}), dweight = at::zeros({24});
    ops::rms_norm_backward(ctx, dy, x, weight, rstd.clone(), dx, dweight);
    testing::expect_slope(x, dx, [&](const at::Tensor& moved) { return loss(moved, weight); });
    testing::expect_slope(weight, dweight, [&](const at::Tensor& moved) { return loss(x, moved); });
}

TEST(Norm, HeadNormBackwardIsTheSlopeOfForward) {
    at::manual_seed(3);
    ops::Context ctx(at::kCPU);
    const at::Tensor x = at::randn({3, 2, 10}), weight = at::randn({10}), dy = at::randn({3, 2, 10});
    const at::Tensor y = at::empty({3, 2, 10}), rstd = at::empty({3, 2});
    const auto loss = [&](const at::Tensor& at_x) {
        ops::head_norm_forward(ctx, at_x, weight, 1e-5, y, rstd);
        return (y.to(at::kDouble) * dy).sum().item<double>();
    };
    loss(x);
    const at::Tensor dx = at::full({3, 2, 10}, NAN);
    ops::head_norm_backward(ctx, dy, x, weight, rstd.clone(), dx, {});
    testing::expect_slope(x, dx, loss);
}

TEST(Norm, BackwardRebuildsTheForwardsBits) {
    testing::expect_norm_rebuilds_bits(at::kCPU);
}

TEST(Norm, RefusesWrongTensors) {
    ops::Context ctx(at::kCPU);
    const at::Tensor x = at::randn({4, 8}), weight = at::ones({8}), y = at::empty({4, 8}), rstd = at::empty({4});
    const auto forward = [&](const at::Tensor& a, const at::Tensor& w, const at::Tensor& b, const at::Tensor& r,
                             ops::Site site = {}) { ops::rms_norm_forward(ctx, a, w, 1e-5, b, r, site); };
    EXPECT_NO_THROW(forward(x, weight, y, rstd));
    EXPECT_THROW(forward(x, at::ones({7}), y, rstd), CheckError);
    EXPECT_THROW(forward(x, weight, at::empty({4, 9}), rstd), CheckError);
    EXPECT_THROW(forward(x, weight, y.to(at::kHalf), rstd), CheckError);
    EXPECT_THROW(forward(x, weight.to(at::kHalf), y, rstd), CheckError);
    EXPECT_THROW(forward(x, weight, y, at::empty({5})), CheckError);
    EXPECT_THROW(forward(x.to(at::kDouble), weight, y.to(at::kDouble), rstd), CheckError);
    EXPECT_THROW(forward(at::randn({8, 4}).t(), weight, y, rstd), CheckError);
    EXPECT_THROW(forward(x, weight, y, rstd, {3}), CheckError) << "there is no outcome to report to";
    EXPECT_THROW(ops::rms_norm_backward(ctx, y, x, weight, rstd, y, at::empty({8}, at::kHalf)), CheckError);
    EXPECT_THROW(ops::rms_norm_backward(ctx, y, x, weight, rstd, y, {}, {}, at::empty({4, 7})), CheckError);
}

}  // namespace
}  // namespace unsloth
