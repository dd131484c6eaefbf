// Tables of measured kernels on a GPU: what they name is what runs. Skips without one.
#include <gtest/gtest.h>

#include "unsloth/core/error.h"
#include "unsloth/ops/gemm.h"
#include "unsloth/ops/gemm_trials.h"
#include "unsloth/ops/kernel_table.h"

namespace unsloth {
namespace {

class KernelTableGpuTest : public ::testing::Test {
  protected:
    void SetUp() override {
        if (!at::hasCUDA()) GTEST_SKIP() << "no GPU";
        ctx = std::make_unique<ops::Context>(at::Device(at::kCUDA, 0));
        ctx->workspace =
            at::empty({ops::gemm_workspace(ctx->device())}, at::TensorOptions(at::kByte).device(ctx->device()));
        at::manual_seed(3);
    }
    std::unique_ptr<ops::Context> ctx;
};

TEST_F(KernelTableGpuTest, TheTablesAlgorithmRuns) {
    constexpr int64_t m = 64, n = 256, k = 8192;
    const auto options = at::TensorOptions(at::kBFloat16).device(ctx->device());
    ops::Gemm product{
        .a = at::randn({m, k}, options), .b = at::randn({n, k}, options), .out = at::empty({m, n}, options)};
    product.transpose_b = true;
    ops::GemmTrials trials(*ctx, product);
    ASSERT_GT(trials.count(), 8U);
    for (std::size_t trial = 0; trial < trials.count(); ++trial) {
        trials.run(trial, product);
        const at::Tensor expected = product.out.cpu();
        spec::KernelTable table;
        table.card = ops::kernel_card(ctx->device());
        table.versions = ops::kernel_versions();
        table.choices = {trials.choice(trial, {m, m}, k)};
        ops::Context by_table(ctx->device());
        by_table.workspace = ctx->workspace;
        by_table.kernels = ops::usable_kernels(ctx->device(), spec::parse_kernels(spec::kernels_text(table), "written"),
                                               "a test's table");
        const ops::GemmTrials now(by_table, product);
        EXPECT_EQ(now.name(now.ours()), trials.name(trial)) << "what gemm() takes";
        product.out.zero_();
        ops::gemm(by_table, product);
        EXPECT_TRUE(at::equal(product.out.cpu(), expected)) << trials.name(trial);
    }
}

TEST_F(KernelTableGpuTest, AnotherLibrarysAlgorithmsAreLeftOut) {
    spec::KernelTable table;
    table.card = ops::kernel_card(ctx->device());
    table.versions = ops::kernel_versions();
    table.choices = {{.op = spec::KernelOperator::gemm, .parameters = {66, 17, 35, 1, 0, 0, 0, 0, 4}}};
    EXPECT_EQ(ops::usable_kernels(ctx->device(), table, "a test's table")->choices.size(), 1U);
    table.versions.cublaslt += 100;
    EXPECT_TRUE(ops::usable_kernels(ctx->device(), table, "another table")->choices.empty());
}

TEST_F(KernelTableGpuTest, AMeasuredCardStartsWithItsTable) {
    const auto built_in = spec::built_in_kernels(ops::kernel_card(ctx->device()));
    EXPECT_EQ(ctx->kernels->choices.empty(), built_in == nullptr);
}

}  // namespace
}  // namespace unsloth
