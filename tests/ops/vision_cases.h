// Cases of what a tower over image patches computes.
#pragma once

#include "ops/op_cases.h"
#include "unsloth/ops/vision.h"

namespace unsloth::testing {

inline OpCase patch_values_case(int64_t patches, int64_t channels, int64_t area, at::ScalarType dtype) {
    constexpr int64_t frames = 2;
    OpCase c;
    c.name = "patch_values " + case_name(patches, channels, area, c10::toString(dtype));
    c.args = {{"bytes", at::randint(0, 256, {patches, channels * area}, at::kByte)},
              {"values", at::randn({channels, 256})},
              {"out", at::full({patches, frames * channels * area}, NAN, at::TensorOptions(dtype)), Role::output}};
    c.run = [=](ops::Context& ctx, const Tensors& a) { ops::patch_values(ctx, a[0], a[1], frames, a[2]); };
    c.expected = [=](const Tensors& a) {
        const at::Tensor bytes = a[0].to(at::kLong).view({patches, channels, 1, area});
        const at::Tensor first = at::arange(channels, at::kLong).view({1, channels, 1, 1}) * 256;
        const at::Tensor frame = a[1].flatten().index({(bytes + first).flatten()}).view({patches, channels, 1, area});
        return Tensors{frame.expand({patches, channels, frames, area}).reshape({patches, frames * channels * area})};
    };
    return c;
}

inline OpCase add_interpolated_case(int64_t patches, int64_t columns, at::ScalarType dtype, Layout layout) {
    OpCase c;
    c.name = "add_interpolated " + case_name(patches, columns, c10::toString(dtype), name_of(layout));
    c.args = {{"table", at::randn({9, columns}).to(dtype)},
              {"index", at::randint(0, 9, {patches, 4}, at::kInt)},
              {"share", at::rand({patches, 4})},
              {"x", slice_of(at::randn({patches, columns}), dtype, layout), Role::both}};
    c.run = [](ops::Context& ctx, const Tensors& a) { ops::add_interpolated(ctx, a[0], a[1], a[2], a[3]); };
    c.expected = [=](const Tensors& a) {
        const at::Tensor rows = a[0].index({a[1].to(at::kLong).flatten()}).view({patches, 4, columns});
        return Tensors{a[3] + (rows * a[2].unsqueeze(2)).sum(1)};
    };
    return c;
}

inline OpCase layer_norm_case(int64_t rows, int64_t columns, at::ScalarType dtype, Layout layout) {
    OpCase c;
    c.name = "layer_norm " + case_name(rows, columns, c10::toString(dtype), name_of(layout));
    c.args = {{"x", slice_of(at::randn({rows, columns}) * 3 + 2, dtype, layout)},
              {"weight", at::randn({columns})},
              {"bias", at::randn({columns})},
              {"y", poisoned_slice({rows, columns}, dtype, layout), Role::output}};
    c.run = [](ops::Context& ctx, const Tensors& a) { ops::layer_norm_forward(ctx, a[0], a[1], a[2], 1e-6, a[3]); };
    c.expected = [=](const Tensors& a) { return Tensors{at::layer_norm(a[0], {columns}, a[1], a[2], 1e-6)}; };
    return c;
}

inline OpCase gelu_case(int64_t rows, int64_t columns, ops::Gelu form, at::ScalarType dtype, Layout layout) {
    OpCase c;
    c.name = "gelu " + case_name(rows, columns, static_cast<int>(form), c10::toString(dtype), name_of(layout));
    c.args = {{"x", slice_of(at::randn({rows, columns}) * 4, dtype, layout), Role::both}};
    c.run = [=](ops::Context& ctx, const Tensors& a) { ops::gelu(ctx, a[0], form); };
    c.expected = [=](const Tensors& a) { return Tensors{at::gelu(a[0], form == ops::Gelu::tanh ? "tanh" : "none")}; };
    return c;
}

inline OpCase layer_norm_backward_case(int64_t rows, int64_t columns, at::ScalarType dtype, Layout layout) {
    OpCase c;
    c.name = "layer_norm_backward " + case_name(rows, columns, c10::toString(dtype), name_of(layout));
    c.args = {{"dy", slice_of(at::randn({rows, columns}), dtype, layout)},
              {"x", slice_of(at::randn({rows, columns}) * 3 + 2, dtype, layout)},
              {"weight", at::randn({columns})},
              {"dx", slice_of(at::randn({rows, columns}), dtype, layout), Role::both}};
    c.run = [](ops::Context& ctx, const Tensors& a) { ops::layer_norm_backward(ctx, a[0], a[1], a[2], 1e-6, a[3]); };
    c.expected = [=](const Tensors& a) {
        const at::Tensor mean = a[1].mean(1, true), off = a[1] - mean;
        const at::Tensor rstd = (off.square().mean(1, true) + 1e-6).rsqrt(), normed = off * rstd, slope = a[0] * a[2];
        return Tensors{a[3] + rstd * (slope - slope.mean(1, true) - normed * (slope * normed).mean(1, true))};
    };
    return c;
}

inline OpCase gelu_backward_case(int64_t rows, int64_t columns, ops::Gelu form, at::ScalarType dtype, Layout layout) {
    OpCase c;
    c.name = "gelu_backward " + case_name(rows, columns, static_cast<int>(form), c10::toString(dtype), name_of(layout));
    c.args = {{"x", slice_of(at::randn({rows, columns}) * 2, dtype, layout)},
              {"dy", slice_of(at::randn({rows, columns}), dtype, layout), Role::both}};
    c.run = [=](ops::Context& ctx, const Tensors& a) { ops::gelu_backward(ctx, a[0], form, a[1]); };
    c.expected = [=](const Tensors& a) {
        return Tensors{at::gelu_backward(a[1], a[0], form == ops::Gelu::tanh ? "tanh" : "none")};
    };
    return c;
}

inline std::vector<OpCase> vision_cases(uint64_t seed) {
    at::manual_seed(seed);
    std::vector<OpCase> cases;
    for (const at::ScalarType dtype : compute_dtypes) {
        cases.push_back(patch_values_case(5, 3, 196, dtype));
        cases.push_back(patch_values_case(1, 3, 4, dtype));
        for (const Layout layout : all_layouts) {
            cases.push_back(add_interpolated_case(6, 24, dtype, layout));
            cases.push_back(add_interpolated_case(3, 1153, dtype, layout));
            for (const int64_t columns : {1, 24, 1152, 4609})
                cases.push_back(layer_norm_case(5, columns, dtype, layout));
            // Of one column the variance is 0, so rounding would be divided by sqrt(eps).
            for (const int64_t columns : {3, 24, 1152, 4609})
                cases.push_back(layer_norm_backward_case(5, columns, dtype, layout));
            for (const ops::Gelu form : {ops::Gelu::erf, ops::Gelu::tanh}) {
                for (const auto& make : {gelu_case, gelu_backward_case}) {
                    cases.push_back(make(3, 48, form, dtype, layout));
                    cases.push_back(make(2, 4305, form, dtype, layout));
                }
            }
        }
    }
    return cases;
}

}  // namespace unsloth::testing
