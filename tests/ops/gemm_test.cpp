// gemm on the CPU against fp64 products: transposes, strides, slices of wider buffers, accumulation, bias,
// empty sizes.
#include "unsloth/ops/gemm.h"

#include <gtest/gtest.h>

#include <tuple>

#include "unsloth/core/error.h"

namespace unsloth::ops {
namespace {

constexpr double sentinel = 12345.0;

/// A matrix that is a slice of a wider buffer: `before` columns left of it and `after` right, all filled with
/// `fill`.
struct Slice {
    at::Tensor buffer, view;
    Slice(int64_t rows, int64_t cols, at::ScalarType type, int64_t before = 0, int64_t after = 0,
          double fill = sentinel)
        : buffer(at::full({rows, before + cols + after}, fill, type)), view(buffer.narrow(1, before, cols)) {}
    /// Nothing outside the slice may change.
    bool margins_kept(int64_t before) const {
        at::Tensor rest = at::cat({buffer.narrow(1, 0, before),
                                   buffer.narrow(1, before + view.size(1), buffer.size(1) - before - view.size(1))},
                                  1);
        return (rest.to(at::kDouble) == at::full({1}, sentinel, buffer.options()).to(at::kDouble)).all().item<bool>();
    }
};

void fill_random(const at::Tensor& x) {
    x.copy_(at::randn(x.sizes(), at::kDouble) * 0.5);
}

at::Tensor reference(const Gemm& g) {
    const at::Tensor a = g.a.to(at::kDouble), b = g.b.to(at::kDouble);
    at::Tensor y = g.alpha * at::mm(g.transpose_a ? a.t() : a, g.transpose_b ? b.t() : b);
    if (g.beta != 0.0) y = y + g.beta * (g.c ? *g.c : g.out).to(at::kDouble);
    if (g.bias) y = y + g.bias->to(at::kDouble);
    return y;
}

/// One rounding to out's dtype beside the fp32 sum: half a unit in the last place of the largest partial
/// result.
double tolerance(at::ScalarType out) {
    switch (out) {
        case at::kBFloat16:
            return 0x1p-8;
        case at::kHalf:
            return 0x1p-11;
        case at::kDouble:
            return 1e-14;
        default:
            return 1e-6;
    }
}

void expect_close(const at::Tensor& actual, const at::Tensor& expected, double relative) {
    const at::Tensor error = (actual.to(at::kDouble) - expected).abs();
    const at::Tensor allowed = relative * 1.01 * expected.abs() + 2e-6;
    EXPECT_TRUE((error <= allowed).all().item<bool>()) << "largest error " << error.max().item<double>();
}

class GemmTypes : public ::testing::TestWithParam<std::tuple<at::ScalarType, at::ScalarType, bool, bool>> {};

TEST_P(GemmTypes, MatchesFp64) {
    const auto [in, out, transpose_a, transpose_b] = GetParam();
    at::manual_seed(7);
    Context ctx(at::kCPU);
    for (const auto& [m, n, k] :
         {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {17, 33, 65}, {64, 8, 127}, {3, 130, 1}}) {
        Slice a(transpose_a ? k : m, transpose_a ? m : k, in, 3, 2),
            b(transpose_b ? n : k, transpose_b ? k : n, in, 0, 5);
        Slice y(m, n, out, 2, 7), c(m, n, out, 1, 1);
        const at::Tensor bias = at::randn({n}, at::kDouble).to(out);
        for (const at::Tensor& x : {a.view, b.view, c.view}) fill_random(x);
        Gemm g{.a = a.view, .b = b.view, .out = y.view, .transpose_a = transpose_a, .transpose_b = transpose_b};
        gemm(ctx, g);
        expect_close(y.view, reference(g), tolerance(out));
        EXPECT_TRUE(y.margins_kept(2));

        fill_random(y.view);
        g.alpha = 0.7, g.beta = -1.3, g.bias = bias;
        at::Tensor expected = reference(g);  // accumulates into what out held
        gemm(ctx, g);
        expect_close(y.view, expected, tolerance(out));

        g.c = c.view;
        expected = reference(g);
        gemm(ctx, g);
        expect_close(y.view, expected, tolerance(out));
        EXPECT_TRUE(y.margins_kept(2));
    }
}

INSTANTIATE_TEST_SUITE_P(All, GemmTypes,
                         ::testing::Combine(::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                                            ::testing::Values(at::kFloat), ::testing::Bool(), ::testing::Bool()));
INSTANTIATE_TEST_SUITE_P(Rounded, GemmTypes,
                         ::testing::Values(std::tuple{at::kBFloat16, at::kBFloat16, false, false},
                                           std::tuple{at::kBFloat16, at::kBFloat16, true, true},
                                           std::tuple{at::kHalf, at::kHalf, false, true},
                                           std::tuple{at::kDouble, at::kDouble, true, false}));

TEST(Gemm, RoundsOnce) {
    // The product is 1 + 2^-8, half way between two bf16 numbers; with the bias 2^-8 it is one of them.
    // Rounding before the bias, or a sum in bf16, would give 1.
    Context ctx(at::kCPU);
    const at::Tensor a = at::ones({1, 257}, at::kBFloat16), b = at::full({257, 1}, 0x1p-8, at::kBFloat16);
    const at::Tensor out = at::empty({1, 1}, at::kBFloat16), bias = at::full({1}, 0x1p-8, at::kBFloat16);
    gemm(ctx, {.a = a, .b = b, .out = out, .bias = bias});
    EXPECT_EQ(out.item<float>(), 1.0f + 0x1p-7f);
    const at::Tensor wide = at::empty({1, 1}, at::kFloat);
    gemm(ctx, {.a = a, .b = b, .out = wide});
    EXPECT_EQ(wide.item<float>(), 257.0f / 256.0f);
}

TEST(Gemm, EmptySizes) {
    Context ctx(at::kCPU);
    const at::Tensor a = at::empty({4, 0}), b = at::empty({0, 3}), bias = at::arange(3, at::kFloat);
    at::Tensor out = at::full({4, 3}, 2.0);
    gemm(ctx, {.a = a, .b = b, .out = out, .beta = 0.5, .bias = bias});
    EXPECT_TRUE(at::equal(out, bias.expand({4, 3}) + 1.0));
    gemm(ctx, {.a = a, .b = b, .out = out});
    EXPECT_TRUE(at::equal(out, at::zeros({4, 3})));
    const at::Tensor c = at::full({4, 3}, 5.0);
    gemm(ctx, {.a = a, .b = b, .out = out, .beta = 1.0, .c = c});
    EXPECT_TRUE(at::equal(out, c));
    gemm(ctx, {.a = at::empty({0, 5}), .b = at::empty({5, 3}), .out = at::empty({0, 3})});
    gemm(ctx, {.a = at::empty({2, 5}), .b = at::empty({5, 0}), .out = at::empty({2, 0})});
}

TEST(Gemm, BetaZeroIgnoresGarbage) {
    Context ctx(at::kCPU);
    at::Tensor out = at::full({2, 2}, std::numeric_limits<double>::quiet_NaN(), at::kFloat);
    gemm(ctx, {.a = at::eye(2), .b = at::eye(2), .out = out, .alpha = 2.0});
    EXPECT_TRUE(at::equal(out, 2 * at::eye(2)));
}

TEST(Gemm, RefusesMismatches) {
    Context ctx(at::kCPU);
    const at::Tensor a = at::ones({4, 5}), b = at::ones({5, 3}), out = at::ones({4, 3});
    EXPECT_THROW(gemm(ctx, {.a = a, .b = at::ones({4, 3}), .out = out}), CheckError);
    EXPECT_THROW(gemm(ctx, {.a = a, .b = b, .out = at::ones({4, 4})}), CheckError);
    EXPECT_THROW(gemm(ctx, {.a = a, .b = b.to(at::kHalf), .out = out}), CheckError);
    EXPECT_THROW(gemm(ctx, {.a = a, .b = b, .out = out.to(at::kBFloat16)}), CheckError);
    EXPECT_THROW(gemm(ctx, {.a = at::ones({5, 4}).t(), .b = b, .out = out}), CheckError);
    EXPECT_THROW(gemm(ctx, {.a = a, .b = b, .out = out, .beta = 1.0, .c = at::ones({4, 2})}), CheckError);
    EXPECT_THROW(gemm(ctx, {.a = a, .b = b, .out = out, .bias = at::ones({4})}), CheckError);
    EXPECT_THROW(gemm(ctx, {.a = a.to(at::kInt), .b = b.to(at::kInt), .out = out}), CheckError);
}

}  // namespace
}  // namespace unsloth::ops
