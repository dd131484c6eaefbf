// gemm on CUDA against fp64 products, over types, transposes, slices, odd strides and shapes that split K.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <iostream>
#include <tuple>

#include "unsloth/core/error.h"
#include "unsloth/ops/gemm.h"

namespace unsloth::ops {
namespace {

constexpr double untouched = 77.0;  // exact in every type

class GemmGpu : public ::testing::Test {
  protected:
    void SetUp() override {
        if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
        ctx = std::make_unique<Context>(at::Device(at::kCUDA, 0));
        ctx->workspace = at::empty({gemm_workspace(ctx->device())}, at::TensorOptions(at::kByte).device(at::kCUDA));
        at::manual_seed(3);
    }
    std::unique_ptr<Context> ctx;
};

/// A random matrix inside a wider buffer of sentinels: `before` and `after` columns beside it.
struct Slice {
    at::Tensor buffer, view;
    int64_t before;
    Slice(int64_t rows, int64_t cols, at::ScalarType type, int64_t before_columns, int64_t after)
        : buffer(at::full({rows, before_columns + cols + after}, untouched, at::TensorOptions(type).device(at::kCUDA))),
          view(buffer.narrow(1, before_columns, cols)),
          before(before_columns) {
        view.copy_(at::randn({rows, cols}, at::kDouble));
    }
    bool margins_kept() const {
        const int64_t after = buffer.size(1) - before - view.size(1);
        return (buffer.narrow(1, 0, before) == untouched).all().item<bool>() &&
               (buffer.narrow(1, buffer.size(1) - after, after) == untouched).all().item<bool>();
    }
};

at::Tensor cpu64(const at::Tensor& x) {
    return x.cpu().to(at::kDouble);
}

at::Tensor reference(const Gemm& g) {
    const at::Tensor a = cpu64(g.a), b = cpu64(g.b);
    at::Tensor y = g.alpha * at::mm(g.transpose_a ? a.t() : a, g.transpose_b ? b.t() : b);
    if (g.beta != 0.0) y = y + g.beta * cpu64(g.c ? *g.c : g.out);
    if (g.bias) y = y + cpu64(*g.bias);
    return y;
}

/// A unit in the last place of the result and of the terms that are added after the product (cuBLASLt may round in
/// between), and the tensor cores' error of a sum of k products (their accumulators truncate).
void expect_close(const at::Tensor& actual, const at::Tensor& expected, int64_t k, double added = 0.0) {
    const double unit = actual.scalar_type() == at::kBFloat16 ? 0x1p-8
                        : actual.scalar_type() == at::kHalf   ? 0x1p-11
                                                              : 0x1p-24;
    const at::Tensor error = (cpu64(actual) - expected).abs();
    const at::Tensor allowed = unit * (expected.abs() + added) + 2e-5 * std::sqrt(static_cast<double>(k)) + 1e-6;
    EXPECT_TRUE((error <= allowed).all().item<bool>()) << "largest excess " << (error - allowed).max().item<double>();
}

TEST_F(GemmGpu, MatchesFp64) {
    const std::vector<std::tuple<at::ScalarType, at::ScalarType>> types = {{at::kFloat, at::kFloat},
                                                                           {at::kBFloat16, at::kBFloat16},
                                                                           {at::kBFloat16, at::kFloat},
                                                                           {at::kHalf, at::kHalf},
                                                                           {at::kHalf, at::kFloat}};
    struct Size {
        int64_t m, n, k, before, after;
    };
    // Aligned slices, odd sizes with odd strides, single rows and columns, a long K that invites a split.
    const std::vector<Size> sizes = {{64, 128, 256, 8, 16}, {33, 65, 127, 1, 2},   {1, 40, 96, 0, 0}, {96, 1, 40, 3, 4},
                                     {16, 64, 20000, 0, 8}, {500, 24, 1000, 0, 0}, {7, 5, 1, 0, 1}};
    for (const auto& [in, out] : types)
        for (const Size& s : sizes)
            for (const bool transpose_a : {false, true})
                for (const bool transpose_b : {false, true}) {
                    SCOPED_TRACE(cat(c10::toString(in), " to ", c10::toString(out), " m ", s.m, " n ", s.n, " k ", s.k,
                                     transpose_a ? " aT" : "", transpose_b ? " bT" : ""));
                    Slice a(transpose_a ? s.k : s.m, transpose_a ? s.m : s.k, in, s.before, s.after);
                    Slice b(transpose_b ? s.n : s.k, transpose_b ? s.k : s.n, in, s.before, s.after);
                    Slice y(s.m, s.n, out, s.before, s.after), c(s.m, s.n, out, s.after, s.before);
                    const at::Tensor bias = at::randn({s.n}, y.buffer.options());
                    Gemm g{.a = a.view,
                           .b = b.view,
                           .out = y.view,
                           .transpose_a = transpose_a,
                           .transpose_b = transpose_b};
                    gemm(*ctx, g);
                    expect_close(y.view, reference(g), s.k);
                    g.alpha = 0.5, g.beta = -1.5, g.bias = bias;
                    at::Tensor expected = reference(g);
                    const double added = std::sqrt(static_cast<double>(s.k)) * 4 + 8;  // largest partial results
                    gemm(*ctx, g);
                    expect_close(y.view, expected, s.k, added);
                    g.c = c.view;
                    expected = reference(g);
                    gemm(*ctx, g);
                    expect_close(y.view, expected, s.k, added);
                    EXPECT_TRUE(y.margins_kept());
                }
}

TEST_F(GemmGpu, MeasuredAlgorithmsMatchFp64) {
    struct Size {
        int64_t m, n, k, padding;
    };
    // By waves of tiles, ragged and even; and llama-3.1-8b's products of few rows, with adapters.
    const std::vector<Size> sizes = {{1100, 1288, 1040, 16},
                                     {2048, 1024, 1152, 0},
                                     {100, 6144, 4096 + 48, 0},
                                     {512, 4096, 6144 + 48, 16},
                                     {128, 4096, 14336 + 16, 0}};
    for (const Size& s : sizes)
        for (const bool transpose_b : {false, true}) {
            SCOPED_TRACE(cat("m ", s.m, " n ", s.n, " k ", s.k, transpose_b ? " bT" : ""));
            Slice a(s.m, s.k, at::kBFloat16, 0, s.padding), y(s.m, s.n, at::kBFloat16, 0, s.padding);
            Slice b(transpose_b ? s.n : s.k, transpose_b ? s.k : s.n, at::kBFloat16, 0, s.padding);
            Slice c(s.m, s.n, at::kBFloat16, 0, 8);
            Gemm g{.a = a.view, .b = b.view, .out = y.view, .transpose_b = transpose_b};
            gemm(*ctx, g);
            expect_close(y.view, reference(g), s.k);
            g.beta = 1.0, g.c = c.view;
            const at::Tensor expected = reference(g);
            gemm(*ctx, g);
            expect_close(y.view, expected, s.k, 4.0);
            EXPECT_TRUE(y.margins_kept());
        }
}

TEST_F(GemmGpu, Fp32IsNotTf32) {
    // 1 + 2^-12 does not fit TF32's 10 bits: a TF32 product would lose it.
    const auto options = at::TensorOptions(at::kFloat).device(at::kCUDA);
    const at::Tensor a = at::full({128, 128}, 1.0 + 0x1p-12, options), b = at::eye(128, options),
                     y = at::empty({128, 128}, options);
    gemm(*ctx, {.a = a, .b = b, .out = y});
    EXPECT_TRUE(at::equal(y, a));
}

TEST_F(GemmGpu, SplitKAddsInFp32) {
    // Partial sums of about 4096 +- 1 in bf16 steps of 32 would be far off; in fp32 the sum is exact.
    const auto options = at::TensorOptions(at::kBFloat16).device(at::kCUDA);
    const at::Tensor a = at::ones({8, 65536}, options), b = at::ones({65536, 8}, options);
    b.narrow(0, 0, 3).fill_(2.0);
    const at::Tensor y = at::empty({8, 8}, options.dtype(at::kFloat));
    gemm(*ctx, {.a = a, .b = b, .out = y});
    EXPECT_TRUE((y == 65539.0).all().item<bool>());
}

TEST_F(GemmGpu, RepeatsBitForBitAndAllocatesNothing) {
    const auto options = at::TensorOptions(at::kBFloat16).device(at::kCUDA);
    const at::Tensor a = at::randn({16, 30000}, options), b = at::randn({30000, 512}, options);
    const at::Tensor first = at::empty({16, 512}, options.dtype(at::kFloat)), again = at::empty_like(first);
    gemm(*ctx, {.a = a, .b = b, .out = first});
    const auto allocations = [] { return c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocation[0].allocated; };
    const int64_t before = allocations();
    for (int i = 0; i < 5; ++i) gemm(*ctx, {.a = a, .b = b, .out = again});
    EXPECT_EQ(allocations(), before);
    EXPECT_TRUE(at::equal(first, again));
}

TEST_F(GemmGpu, EmptySizes) {
    const auto options = at::TensorOptions(at::kBFloat16).device(at::kCUDA);
    const at::Tensor out = at::full({4, 8}, 2.0, options), bias = at::ones({8}, options);
    gemm(*ctx,
         {.a = at::empty({4, 0}, options), .b = at::empty({0, 8}, options), .out = out, .beta = 0.5, .bias = bias});
    EXPECT_TRUE((out == 2.0).all().item<bool>());
    gemm(*ctx, {.a = at::empty({0, 8}, options), .b = at::empty({8, 8}, options), .out = at::empty({0, 8}, options)});
}

/// Run by hand: --gtest_also_run_disabled_tests --gtest_filter='GemmGpu.DISABLED_Speed'.
TEST_F(GemmGpu, DISABLED_Speed) {
    struct Size {
        const char* name;
        int64_t m, n, k;
        bool transpose_a, transpose_b, wide;
    };
    const int64_t t = 16384;
    const std::vector<Size> sizes = {{"qkv", t, 6144, 4096 + 48, false, true, false},
                                     {"o", t, 4096, 4096 + 16, false, true, false},
                                     {"gate+up", t, 28672, 4096 + 32, false, true, false},
                                     {"down", t, 4096, 14336 + 16, false, true, false},
                                     {"gate+up dx", t, 4096, 28672 + 32, false, false, false},
                                     {"x A^T", t, 48, 4096, false, true, false},
                                     {"dA (fp32)", 48, 4096, t, true, false, true},
                                     {"dB (fp32)", 28672, 16, t, true, false, true},
                                     {"qkv, 512 tokens", 512, 6144, 4096 + 48, false, true, false}};
    for (const Size& s : sizes) {
        const auto options = at::TensorOptions(at::kBFloat16).device(at::kCUDA);
        const at::Tensor a = at::randn({s.transpose_a ? s.k : s.m, s.transpose_a ? s.m : s.k}, options);
        const at::Tensor b = at::randn({s.transpose_b ? s.n : s.k, s.transpose_b ? s.k : s.n}, options);
        const at::Tensor y = at::empty({s.m, s.n}, s.wide ? options.dtype(at::kFloat) : options);
        const Gemm g{.a = a, .b = b, .out = y, .transpose_a = s.transpose_a, .transpose_b = s.transpose_b};
        cudaEvent_t start, stop;
        cudaEventCreate(&start), cudaEventCreate(&stop);
        for (int i = 0; i < 3; ++i) gemm(*ctx, g);
        const auto stream = static_cast<cudaStream_t>(ctx->stream());
        const int repeats = 20;
        cudaEventRecord(start, stream);
        for (int i = 0; i < repeats; ++i) gemm(*ctx, g);
        cudaEventRecord(stop, stream);
        cudaEventSynchronize(stop);
        float ms = 0;
        cudaEventElapsedTime(&ms, start, stop);
        ms /= repeats;
        std::cout << s.name << ": " << ms << " ms, " << 2e-9 * static_cast<double>(s.m) * s.n * s.k / ms << " TF/s\n";
    }
}

}  // namespace
}  // namespace unsloth::ops
