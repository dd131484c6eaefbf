// gemm_coded on CUDA against fp64 products of the same codes: every implementation, odd shapes, slices, tails,
// residuals, capture. Skips cards without such products.
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>

#include "gpu/gpu_testing.h"
#include "kernels/coded_gemm_sm90.h"
#include "kernels/int8_gemm_mma.h"
#include "ops/coded_testing.h"
#include "unsloth/core/error.h"
#include "unsloth/ops/coded_rows.h"
#include "unsloth/ops/gemm.h"
#include "unsloth/ops/gemm_coded.h"

namespace unsloth::ops {
namespace {

constexpr double outside = 77.0;  // exact in bf16

/// bf16's rounding (1.7e-3), and the tensor cores' accumulators, which keep about 14 bits.
double allowed(int64_t k) {
    return 2.2e-3 + 1.2e-7 * static_cast<double>(k);
}

class GemmFp8Gpu : public ::testing::Test {
  protected:
    virtual spec::Codes format() const { return spec::Codes::e4m3; }
    void SetUp() override {
        if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
        if (!coded_available(at::Device(at::kCUDA, 0), format()))
            GTEST_SKIP() << "no such products on " << at::cuda::getDeviceProperties(0)->name;
        ctx = std::make_unique<Context>(at::Device(at::kCUDA, 0));
        ctx->workspace = at::empty({gemm_workspace(ctx->device())}, at::TensorOptions(at::kByte).device(at::kCUDA));
        at::manual_seed(5);
    }
    at::TensorOptions bf16() const { return at::TensorOptions(at::kBFloat16).device(at::kCUDA); }
    GemmCoded random_case(int64_t m, int64_t n, int64_t k, int64_t rank, bool residual, bool bias, bool int8 = false) {
        GemmCoded g{.x = int8 ? random_int8(m, k, at::kCUDA, 0.01, true) : random_fp8(m, k, at::kCUDA, 0.01),
                    .w = int8 ? random_int8(n, k, at::kCUDA, 1e-3, false) : random_fp8(n, k, at::kCUDA, 1e-3)};
        buffer = at::full({m, n + 16}, outside, bf16());
        g.out = buffer.narrow(1, 8, n);
        g.out.fill_(std::numeric_limits<double>::quiet_NaN());
        if (rank > 0) {  // u is the tail of a wider buffer
            g.u = at::randn({m, 64 + rank}, bf16()).narrow(1, 64, rank);
            g.b = at::randn({n, rank}, bf16());
        }
        if (residual) g.residual = at::randn({m, n}, bf16()) * 3;
        if (bias) g.bias = at::randn({n}, bf16());
        return g;
    }
    void expect_margins_kept() const {
        EXPECT_TRUE((buffer.narrow(1, 0, 8) == outside).all().item<bool>());
        EXPECT_TRUE((buffer.narrow(1, buffer.size(1) - 8, 8) == outside).all().item<bool>());
    }
    std::unique_ptr<Context> ctx;
    at::Tensor buffer;  ///< of which the last random_case's out is a part
};

class GemmInt8Gpu : public GemmFp8Gpu {
    spec::Codes format() const override { return spec::Codes::int8; }
};

struct Size {
    int64_t m, n, k, rank;
    bool residual, bias;
};
// One tile exactly, parts of a tile, several of each kind, every kind of tail.
const std::vector<Size> sizes = {{128, 256, 128, 0, false, false},  {1, 8, 16, 8, true, true},
                                 {77, 200, 272, 16, false, false},  {300, 520, 1040, 48, true, false},
                                 {129, 264, 4112, 192, true, true}, {1000, 1032, 2048, 64, false, true},
                                 {513, 4096, 4096, 0, true, false}, {2048, 1536, 14336, 16, false, false}};

TEST_F(GemmFp8Gpu, MatchesFp64) {
    for (const Size& s : sizes) {
        SCOPED_TRACE(cat("m ", s.m, " n ", s.n, " k ", s.k, " rank ", s.rank));
        GemmCoded g = random_case(s.m, s.n, s.k, s.rank, s.residual, s.bias);
        gemm_coded(*ctx, g);
        // The library's way rounds u b^T + residual before the sum.
        EXPECT_LT(relative_error(g.out, exact(g)), allowed(s.k) + 1e-3);
        g.residual = g.out;  // in place
        const at::Tensor expected = exact(g);
        gemm_coded(*ctx, g);
        EXPECT_LT(relative_error(g.out, expected), allowed(s.k) + 1e-3);
        expect_margins_kept();
    }
}

TEST_F(GemmFp8Gpu, EveryTileMatchesFp64) {
    if (!kernels::coded_gemm_sm90_built()) GTEST_SKIP() << "built without code for this card";
    kernels::CodedGemmSm90 own;
    for (const Size& s : sizes) {
        GemmCoded g = random_case(s.m, s.n, s.k, s.rank, s.residual, s.bias);
        const at::Tensor expected = exact(g);
        for (const kernels::CodedTile& tile : kernels::coded_gemm_tiles(kernels::CodeFormat::e4m3)) {
            SCOPED_TRACE(cat("m ", s.m, " n ", s.n, " k ", s.k, " rank ", s.rank, ", tile of ", tile.columns,
                             ", cluster ", tile.cluster));
            g.out.fill_(std::numeric_limits<double>::quiet_NaN());
            own.run(plain(g), tile, static_cast<cudaStream_t>(ctx->stream()));
            EXPECT_LT(relative_error(g.out, expected), allowed(s.k));
            expect_margins_kept();
        }
    }
}

TEST_F(GemmInt8Gpu, MatchesFp64) {
    const bool hopper = at::cuda::getDeviceProperties(0)->major == 9 && kernels::coded_gemm_sm90_built();
    kernels::CodedGemmSm90 own;
    for (const Size& s : sizes) {
        GemmCoded g = random_case(s.m, s.n, s.k, s.rank, s.residual, s.bias, true);
        const at::Tensor expected = exact(g);
        for (const kernels::CodedTile& tile : kernels::coded_gemm_tiles(kernels::CodeFormat::int8)) {
            if (!hopper) break;
            SCOPED_TRACE(cat("m ", s.m, " n ", s.n, " k ", s.k, " rank ", s.rank, ", tile of ", tile.columns,
                             ", cluster ", tile.cluster));
            g.out.fill_(std::numeric_limits<double>::quiet_NaN());
            own.run(plain(g), tile, static_cast<cudaStream_t>(ctx->stream()));
            EXPECT_LT(relative_error(g.out, expected), 2.2e-3);  // bf16's rounding: sums are exact in each block
            expect_margins_kept();
        }
        for (const bool portable : {false, true}) {
            SCOPED_TRACE(
                cat("m ", s.m, " n ", s.n, " k ", s.k, " rank ", s.rank, portable ? ", mma.sync" : ", chosen"));
            g.out.fill_(std::numeric_limits<double>::quiet_NaN());
            if (portable)
                kernels::int8_gemm_mma(plain(g), static_cast<cudaStream_t>(ctx->stream()));
            else
                gemm_coded(*ctx, g);
            EXPECT_LT(relative_error(g.out, expected), 2.2e-3);
            expect_margins_kept();
        }
    }
}

/// Run by hand: --gtest_also_run_disabled_tests --gtest_filter='GemmInt8Gpu.DISABLED_Speed'.
TEST_F(GemmInt8Gpu, DISABLED_Speed) {
    for (const auto& [m, n, k] : {std::tuple{16384, 28672, 4096}, {16384, 4096, 14336}, {2048, 4096, 4096}}) {
        const GemmCoded g = random_case(m, n, k, 16, false, false, true);
        const auto stream = static_cast<cudaStream_t>(ctx->stream());
        const auto report = [&](const char* name, const std::function<void()>& run) {
            const double ms = testing::milliseconds_of(run);
            std::cout << name << " " << m << " x " << n << " x " << k << ": " << ms << " ms, "
                      << 2e-9 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) / ms
                      << " TOP/s\n";
        };
        report("chosen", [&] { gemm_coded(*ctx, g); });
        report("mma.sync", [&] { kernels::int8_gemm_mma(plain(g), stream); });
    }
}

TEST_F(GemmInt8Gpu, RepeatsBitForBit) {
    const GemmCoded g = random_case(5000, 4096, 14336, 16, true, false, true);
    gemm_coded(*ctx, g);
    const at::Tensor first = g.out.clone();
    for (int i = 0; i < 20; ++i) gemm_coded(*ctx, g);
    EXPECT_TRUE(at::equal(g.out, first));
}

TEST_F(GemmFp8Gpu, RepeatsBitForBitAndAllocatesNothing) {
    const GemmCoded g = random_case(700, 4096, 4096, 16, true, false);
    gemm_coded(*ctx, g);
    const at::Tensor first = g.out.clone();
    const auto allocations = [] { return c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocation[0].allocated; };
    const int64_t before = allocations();
    for (int i = 0; i < 5; ++i) gemm_coded(*ctx, g);
    EXPECT_EQ(allocations(), before);
    EXPECT_TRUE(at::equal(g.out, first));
}

TEST_F(GemmFp8Gpu, IsCaptured) {
    const GemmCoded g = random_case(256, 512, 1024, 16, true, false);
    gemm_coded(*ctx, g);  // makes handles and plans
    const at::Tensor first = g.out.clone();
    const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
    c10::cuda::getCurrentCUDAStream().synchronize();
    at::cuda::CUDAGraph graph;
    {
        const c10::cuda::CUDAStreamGuard guard(stream);
        graph.capture_begin();
        gemm_coded(*ctx, g);
        graph.capture_end();
        g.out.zero_();
        graph.replay();
        stream.synchronize();
    }
    EXPECT_TRUE(at::equal(g.out, first));
}

}  // namespace
}  // namespace unsloth::ops
