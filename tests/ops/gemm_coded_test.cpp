// gemm_coded on the CPU against fp64 products, its checks, and the choice between implementations.
#include "unsloth/ops/gemm_coded.h"

#include <gtest/gtest.h>

#include <set>

#include "ops/coded_testing.h"
#include "src/ops/gemm_coded_choice.h"
#include "unsloth/core/error.h"
#if UNSLOTH_CUDA
#include "kernels/coded_gemm_sm90.h"
#endif

namespace unsloth::ops {
namespace {

class GemmCodedTest : public ::testing::Test {
  protected:
    GemmCodedTest() : ctx(at::kCPU) { at::manual_seed(11); }
    Context ctx;
};

TEST_F(GemmCodedTest, MatchesFp64) {
    struct Size {
        int64_t m, n, k, rank;
    };
    for (const bool int8 : {false, true})
        for (const at::ScalarType type : {at::kBFloat16, at::kFloat})
            for (const Size& s :
                 {Size{1, 8, 16, 8}, Size{5, 24, 48, 0}, Size{33, 40, 272, 16}, Size{16, 64, 1024, 48}}) {
                SCOPED_TRACE(cat(c10::toString(type), " m ", s.m, " n ", s.n, " k ", s.k, " rank ", s.rank));
                GemmCoded g{.x = random_fp8(s.m, s.k, at::kCPU, 0.01), .w = random_fp8(s.n, s.k, at::kCPU, 1e-3)};
                if (int8) {
                    g.x = random_int8(s.m, s.k, at::kCPU, 0.01, true);
                    g.w = random_int8(s.n, s.k, at::kCPU, 1e-3, false);
                }
                // Slices of wider buffers: [x | u] as the model lays them out, and columns beside out.
                const at::Tensor wide = at::full({s.m, s.n + 16}, 77.0, type);
                g.out = wide.narrow(1, 8, s.n);
                if (s.rank > 0) {
                    g.u = at::randn({s.m, s.rank + 8}).to(type).narrow(1, 8, s.rank);
                    g.b = at::randn({s.n, s.rank}).to(type);
                }
                const double allowed = type == at::kBFloat16 ? 2.5e-3 : 1e-6;
                gemm_coded(ctx, g);
                EXPECT_LT(relative_error(g.out, exact(g)), allowed);
                g.bias = at::randn({s.n}).to(type);
                g.residual = at::randn({s.m, s.n + 8}).to(type).narrow(1, 0, s.n);
                gemm_coded(ctx, g);
                EXPECT_LT(relative_error(g.out, exact(g)), allowed);
                g.residual = g.out;  // in place
                const at::Tensor expected = exact(g);
                gemm_coded(ctx, g);
                EXPECT_LT(relative_error(g.out, expected), allowed);
                EXPECT_TRUE((wide.narrow(1, 0, 8) == 77.0).all().item<bool>());
                EXPECT_TRUE((wide.narrow(1, s.n + 8, 8) == 77.0).all().item<bool>());
            }
}

TEST_F(GemmCodedTest, TakesBothNamesOfTheCodes) {
    GemmCoded g{
        .x = random_fp8(3, 32, at::kCPU, 0.01), .w = random_fp8(8, 32, at::kCPU, 0.01), .out = at::empty({3, 8})};
    gemm_coded(ctx, g);
    const at::Tensor first = g.out.clone();
    g.x.codes = g.x.codes.view(at::kFloat8_e4m3fn);
    g.w.codes = g.w.codes.view(at::kFloat8_e4m3fn);
    gemm_coded(ctx, g);
    EXPECT_TRUE(at::equal(g.out, first));
}

TEST_F(GemmCodedTest, NoRows) {
    gemm_coded(ctx,
               {.x = random_fp8(0, 32, at::kCPU, 1), .w = random_fp8(8, 32, at::kCPU, 1), .out = at::empty({0, 8})});
}

TEST_F(GemmCodedTest, RejectsWhatDoesNotFit) {
    const GemmCoded good{
        .x = random_fp8(3, 32, at::kCPU, 1), .w = random_fp8(8, 32, at::kCPU, 1), .out = at::empty({3, 8})};
    gemm_coded(ctx, good);
    GemmCoded bad = good;
    bad.w = random_fp8(8, 48, at::kCPU, 1);
    EXPECT_THROW(gemm_coded(ctx, bad), CheckError);
    bad = good;
    bad.x.codes = bad.x.codes.to(at::kInt);
    EXPECT_THROW(gemm_coded(ctx, bad), CheckError);
    bad = good;
    bad.x.scales = bad.x.scales.to(at::kDouble);
    EXPECT_THROW(gemm_coded(ctx, bad), CheckError);
    bad = good;
    bad.u = at::empty({3, 16});
    EXPECT_THROW(gemm_coded(ctx, bad), CheckError);
    bad.b = at::empty({8, 8});
    EXPECT_THROW(gemm_coded(ctx, bad), CheckError);
    bad = good;
    bad.out = at::empty({3, 8}, at::kHalf);
    EXPECT_THROW(gemm_coded(ctx, bad), CheckError);
    bad = good;
    bad.x = random_fp8(3, 24, at::kCPU, 1), bad.w = random_fp8(8, 24, at::kCPU, 1);
    EXPECT_THROW(gemm_coded(ctx, bad), CheckError);
    bad = good;
    bad.bias = at::empty({9});
    EXPECT_THROW(gemm_coded(ctx, bad), CheckError);
}

TEST(Int8GemmTile, FollowsFromTheSize) {
    EXPECT_EQ(int8_gemm_tile(132, 16384, 28672).columns, 192);
    EXPECT_EQ(int8_gemm_tile(132, 16384, 28672).cluster, 2);
    EXPECT_EQ(int8_gemm_tile(132, 16384, 4096).columns, 192);
    EXPECT_EQ(int8_gemm_tile(132, 512, 4096).columns, 128);  // one wave either way
    EXPECT_EQ(int8_gemm_tile(132, 512, 4096).cluster, 1);
}

const spec::KernelTable& h200() {
    static const auto table = spec::built_in_kernels({"NVIDIA H200", 90, 132});
    return *table;
}

TEST(CodedGemmChoice, WithoutATableTheLibraryComputes) {
    EXPECT_FALSE(coded_gemm_choice({}, 16384, 28672, 4096, 16).own);
}

TEST(CodedGemmChoice, ATailTakesTheOwnKernelWhereItWasMeasured) {
    const auto h100 = spec::built_in_kernels({"NVIDIA H100 80GB HBM3", 90, 132});
    EXPECT_TRUE(coded_gemm_choice(h200(), 16384, 28672, 4096, 16).own);
    EXPECT_TRUE(coded_gemm_choice(*h100, 16384, 28672, 4096, 16).own);
    EXPECT_FALSE(coded_gemm_choice(h200(), 16384, 28672, 4096, 0).own);  // without one the library is as fast
}

TEST(CodedGemmChoice, TilesFollowWhatWasMeasured) {
    const auto tile = [&](int64_t m, int64_t n) { return coded_gemm_choice(h200(), m, n, 4096, 16).tile; };
    for (const int64_t n : {4096, 6144, 14336, 28672}) EXPECT_EQ(tile(16384, n).columns, 256) << n;
    EXPECT_EQ(tile(512, 6144).columns, 192);  // 128 tiles for 132 multiprocessors
    EXPECT_EQ(tile(512, 4096).columns, 128);
    EXPECT_EQ(tile(128, 4096).columns, 128);
    EXPECT_EQ(tile(16384, 4096).cluster, 2);
    EXPECT_EQ(tile(128, 4096).cluster, 1);
}

TEST(CodedGemmChoice, AChoiceForOneProductGoesBeforeTheWaves) {
    spec::KernelTable table = h200();
    table.choices.insert(table.choices.begin(), {.op = spec::KernelOperator::gemm_fp8,
                                                 .n = {4096, 4096},
                                                 .rank = {1, 64},
                                                 .kernel = spec::KernelSource::sm90,
                                                 .parameters = {192}});
    table.choices.insert(table.choices.begin(),
                         {.op = spec::KernelOperator::gemm_fp8, .n = {6144, 6144}, .rank = {1, 64}});
    EXPECT_EQ(coded_gemm_choice(table, 16384, 4096, 4096, 16).tile.columns, 192);
    EXPECT_EQ(coded_gemm_choice(table, 16384, 4096, 4096, 128).tile.columns, 256);
    EXPECT_FALSE(coded_gemm_choice(table, 16384, 6144, 4096, 16).own);
}

#if UNSLOTH_CUDA
TEST(CodedGemmChoice, TheBuiltInTablesNameTilesThatAreBuilt) {
    const std::vector<kernels::CodedTile> built = kernels::coded_gemm_tiles(kernels::CodeFormat::e4m3);
    for (const char* card : {"NVIDIA H200", "NVIDIA H100 80GB HBM3"}) {
        std::set<int64_t> named;
        for (const spec::KernelChoice& choice : spec::built_in_kernels({card, 90, 132})->choices)
            if (choice.op == spec::KernelOperator::gemm_fp8) named.insert(choice.parameters.at(0));
        std::set<int64_t> shared, alone;
        for (const kernels::CodedTile& tile : built) (tile.cluster == 2 ? shared : alone).insert(tile.columns);
        EXPECT_EQ(named, alone) << card << ": what no table names need not be built";
        EXPECT_EQ(named, shared) << card;
    }
}
#endif

}  // namespace
}  // namespace unsloth::ops
