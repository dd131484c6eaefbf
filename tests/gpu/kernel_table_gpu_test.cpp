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

/// The exact product is 0: what is left is the rounding of the sums, whose order says whether K was split.
TEST_F(KernelTableGpuTest, TheTablesAlgorithmRuns) {
    constexpr int64_t m = 64, n = 256, k = 8192, split_k = 3, reduction = 4, compute_type = 2;
    const auto options = at::TensorOptions(at::kBFloat16).device(ctx->device());
    const at::Tensor x = at::randn({m, k / 2}, options), w = at::randn({n, k / 2}, options);
    ops::Gemm product{.a = at::cat({x, x}, 1), .b = at::cat({w, w.neg()}, 1), .out = at::empty({m, n}, options)};
    product.transpose_b = true;
    const auto by_table = [&](const spec::KernelChoice& choice) {
        spec::KernelTable table;
        table.card = ops::kernel_card(ctx->device());
        table.versions = ops::kernel_versions();
        table.choices = {choice};
        ctx->kernels = ops::usable_kernels(ctx->device(), spec::parse_kernels(spec::kernels_text(table), "written"),
                                           "a test's table");
        product.out.zero_();
        ops::gemm(*ctx, product);
        return product.out.cpu();
    };
    ops::GemmTrials trials(*ctx, product);
    int split = 0;
    for (std::size_t trial = 0; trial < trials.count(); ++trial) {
        trials.run(trial, product);
        const at::Tensor expected = product.out.cpu();
        spec::KernelChoice choice = trials.choice(trial, {m, m}, k);
        EXPECT_TRUE(at::equal(by_table(choice), expected)) << trials.name(trial);
        if (choice.parameters[split_k] != 1) continue;
        choice.parameters[split_k] = 4;
        choice.parameters[reduction] = compute_type;
        if (!at::equal(by_table(choice), expected)) ++split;
    }
    EXPECT_GT(split, 0) << "none of " << trials.count() << " algorithms gave other bits with K split";
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
