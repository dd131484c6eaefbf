// The second oracle: an operator's backward is the slope of its own forward.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>

namespace unsloth::testing {

/// Along a few random directions v, (loss(x + h v) - loss(x - h v)) / 2h must be <gradient, v>. `loss` is computed by
/// fp32 operators, so h is large and the bound loose; a wrong formula is off by far more.
inline void expect_slope(const at::Tensor& x, const at::Tensor& gradient,
                         const std::function<double(const at::Tensor&)>& loss) {
    constexpr double h = 2e-3;
    for (int direction = 0; direction < 4; ++direction) {
        const at::Tensor v = at::randn_like(x);
        const double slope = (loss(x + v * h) - loss(x - v * h)) / (2 * h);
        const double claimed = (gradient.to(at::kDouble) * v).sum().item<double>();
        const double scale = gradient.norm().item<double>();
        EXPECT_NEAR(slope, claimed, 2e-3 * scale) << "direction " << direction;
    }
}

}  // namespace unsloth::testing
