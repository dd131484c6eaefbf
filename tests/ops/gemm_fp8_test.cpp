// gemm_fp8 on the CPU against fp64 products, its checks, and the choice between implementations.
#include "unsloth/ops/gemm_fp8.h"

#include <gtest/gtest.h>

#include "ops/fp8_testing.h"
#include "src/ops/gemm_fp8_choice.h"
#include "unsloth/core/error.h"

namespace unsloth::ops {
namespace {

class GemmFp8Test : public ::testing::Test {
  protected:
    GemmFp8Test() : ctx(at::kCPU) { at::manual_seed(11); }
    Context ctx;
};

TEST_F(GemmFp8Test, MatchesFp64) {
    struct Size {
        int64_t m, n, k, rank;
    };
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat})
        for (const Size& s : {Size{1, 8, 16, 8}, Size{5, 24, 48, 0}, Size{33, 40, 272, 16}, Size{16, 64, 1024, 48}}) {
            SCOPED_TRACE(cat(c10::toString(type), " m ", s.m, " n ", s.n, " k ", s.k, " rank ", s.rank));
            GemmFp8 g{.x = random_fp8(s.m, s.k, at::kCPU, 0.01), .w = random_fp8(s.n, s.k, at::kCPU, 1e-3)};
            // Slices of wider buffers: [x | u] as the model lays them out, and columns beside out.
            const at::Tensor wide = at::full({s.m, s.n + 16}, 77.0, type);
            g.out = wide.narrow(1, 8, s.n);
            if (s.rank > 0) {
                g.u = at::randn({s.m, s.rank + 8}).to(type).narrow(1, 8, s.rank);
                g.b = at::randn({s.n, s.rank}).to(type);
            }
            const double allowed = type == at::kBFloat16 ? 2.5e-3 : 1e-6;
            gemm_fp8(ctx, g);
            EXPECT_LT(relative_error(g.out, exact(g)), allowed);
            g.bias = at::randn({s.n}).to(type);
            g.residual = at::randn({s.m, s.n + 8}).to(type).narrow(1, 0, s.n);
            gemm_fp8(ctx, g);
            EXPECT_LT(relative_error(g.out, exact(g)), allowed);
            g.residual = g.out;  // in place
            const at::Tensor expected = exact(g);
            gemm_fp8(ctx, g);
            EXPECT_LT(relative_error(g.out, expected), allowed);
            EXPECT_TRUE((wide.narrow(1, 0, 8) == 77.0).all().item<bool>());
            EXPECT_TRUE((wide.narrow(1, s.n + 8, 8) == 77.0).all().item<bool>());
        }
}

TEST_F(GemmFp8Test, TakesBothNamesOfTheCodes) {
    GemmFp8 g{.x = random_fp8(3, 32, at::kCPU, 0.01), .w = random_fp8(8, 32, at::kCPU, 0.01), .out = at::empty({3, 8})};
    gemm_fp8(ctx, g);
    const at::Tensor first = g.out.clone();
    g.x.codes = g.x.codes.view(at::kFloat8_e4m3fn);
    g.w.codes = g.w.codes.view(at::kFloat8_e4m3fn);
    gemm_fp8(ctx, g);
    EXPECT_TRUE(at::equal(g.out, first));
}

TEST_F(GemmFp8Test, NoRows) {
    gemm_fp8(ctx, {.x = random_fp8(0, 32, at::kCPU, 1), .w = random_fp8(8, 32, at::kCPU, 1), .out = at::empty({0, 8})});
}

TEST_F(GemmFp8Test, RejectsWhatDoesNotFit) {
    const GemmFp8 good{
        .x = random_fp8(3, 32, at::kCPU, 1), .w = random_fp8(8, 32, at::kCPU, 1), .out = at::empty({3, 8})};
    gemm_fp8(ctx, good);
    GemmFp8 bad = good;
    bad.w = random_fp8(8, 48, at::kCPU, 1);
    EXPECT_THROW(gemm_fp8(ctx, bad), CheckError);
    bad = good;
    bad.x.codes = bad.x.codes.to(at::kInt);
    EXPECT_THROW(gemm_fp8(ctx, bad), CheckError);
    bad = good;
    bad.x.scales = bad.x.scales.to(at::kDouble);
    EXPECT_THROW(gemm_fp8(ctx, bad), CheckError);
    bad = good;
    bad.u = at::empty({3, 16});
    EXPECT_THROW(gemm_fp8(ctx, bad), CheckError);
    bad.b = at::empty({8, 8});
    EXPECT_THROW(gemm_fp8(ctx, bad), CheckError);
    bad = good;
    bad.out = at::empty({3, 8}, at::kHalf);
    EXPECT_THROW(gemm_fp8(ctx, bad), CheckError);
    bad = good;
    bad.x = random_fp8(3, 24, at::kCPU, 1), bad.w = random_fp8(8, 24, at::kCPU, 1);
    EXPECT_THROW(gemm_fp8(ctx, bad), CheckError);
    bad = good;
    bad.bias = at::empty({9});
    EXPECT_THROW(gemm_fp8(ctx, bad), CheckError);
}

TEST(Fp8GemmChoice, CardsThatWereNotMeasuredGetTheLibrary) {
    for (const char* card : {"", "NVIDIA H100 PCIe", "NVIDIA GeForce RTX 4090", "NVIDIA H20"})
        EXPECT_FALSE(fp8_gemm_choice(16384, 28672, 16, card).own) << card;
}

TEST(Fp8GemmChoice, ATailTakesTheOwnKernelWhereItWasMeasured) {
    for (const char* card : {"NVIDIA H200", "NVIDIA H100 80GB HBM3"})
        EXPECT_TRUE(fp8_gemm_choice(16384, 28672, 16, card).own) << card;
    EXPECT_FALSE(fp8_gemm_choice(16384, 28672, 0, "NVIDIA H200").own);  // without one the library is as fast
}

TEST(Fp8GemmChoice, TilesFollowWhatWasMeasured) {
    const char* card = "NVIDIA H200";
    EXPECT_FALSE(fp8_gemm_tile(16384, 28672, "NVIDIA H100 PCIe").has_value());
    const auto columns = [&](int64_t m, int64_t n) { return fp8_gemm_tile(m, n, card)->columns; };
    for (const int64_t n : {4096, 6144, 14336, 28672}) EXPECT_EQ(columns(16384, n), 256) << n;
    EXPECT_EQ(columns(512, 6144), 192);  // 128 tiles for 132 multiprocessors
    EXPECT_EQ(columns(512, 4096), 128);
    EXPECT_EQ(columns(128, 4096), 128);
    EXPECT_EQ(fp8_gemm_tile(16384, 4096, card)->cluster, 2);
    EXPECT_EQ(fp8_gemm_tile(128, 4096, card)->cluster, 1);
    for (int64_t m = 1; m < 20000; m = m * 3 + 1)
        for (int64_t n = 8; n < 200000; n = n * 2 + 8)
            EXPECT_EQ(fp8_gemm_tile(m, n, card)->promote, 0) << m << " " << n;
}

}  // namespace
}  // namespace unsloth::ops
