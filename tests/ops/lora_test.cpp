#include "unsloth/ops/lora.h"

#include "ops/lora_cases.h"
#include "src/ops/lora_cuda.h"
#include "unsloth/core/error.h"
#include "unsloth/spec/kernel_table.h"
#if UNSLOTH_CUDA
#include "kernels/lora_gemm.h"
#endif

namespace unsloth {
namespace {

TEST(Lora, TokensHaveTheirOwnersColumns) {
    ops::Context ctx(at::kCPU);
    testing::check_lora_u_of_owners(ctx, ops::LoraChoice::measured);
}

TEST(Lora, MatchesOracle) {
    testing::check_on_cpu(testing::lora_cases(1), testing::Sums::of_libtorch);
    testing::check_on_cpu(testing::lora_kernel_cases(2), testing::Sums::of_libtorch);
}

TEST(Lora, OfCodesIsOfTheirValues) {
    ops::Context ctx(at::kCPU);
    testing::check_lora_of_codes(ctx);
}

TEST(Lora, RefusesWrongShapes) {
    ops::Context ctx(at::kCPU);
    const at::Tensor x = at::randn({4, 16}), a = at::randn({8, 16}), u = at::empty({4, 8});
    EXPECT_THROW(ops::lora_u(ctx, {.x_TK = x, .a_RK = at::randn({8, 24}), .u_TR = u}), CheckError);
    EXPECT_THROW(ops::lora_u(ctx, {.x_TK = x, .a_RK = a, .u_TR = u.to(at::kBFloat16)}), CheckError);
    EXPECT_THROW(ops::lora_u(ctx, {.x_TK = x, .a_RK = a, .u_TR = u, .copy_TR = at::empty({3, 8})}), CheckError);
    ops::LoraSlice slice;
    slice.n = 16, slice.r = 8, slice.rank = 8;
    ops::LoraDy dy{.dy_TN = x, .b_NR = at::randn({16, 8}), .u_TR = at::randn({4, 8}), .v_TR = u, .slices = {slice}};
    EXPECT_THROW(ops::lora_dy(ctx, dy), CheckError) << "no gradient";
    dy.slices[0].db = at::zeros({16, 8});
    EXPECT_NO_THROW(ops::lora_dy(ctx, dy));
    dy.slices[0].n_begin = 8;
    EXPECT_THROW(ops::lora_dy(ctx, dy), CheckError) << "outputs beyond the group";
    ops::LoraDa da{.v_TR = u, .x_TK = x, .slices = {slice}};
    da.slices[0].da = at::zeros({8, 15});
    EXPECT_THROW(ops::lora_da(ctx, da), CheckError);
    EXPECT_FALSE(ops::reads_codes(ctx, ops::LoraU{.a_RK = a, .u_TR = u})) << "there are none";
    ops::LoraU of_codes{.a_RK = a, .u_TR = u, .codes = testing::random_codes(4, 24, at::kCPU, spec::Codes::int8)};
    EXPECT_THROW(ops::lora_u(ctx, of_codes), CheckError) << "of more columns than A has";
    of_codes.codes = testing::random_codes(4, 16, at::kCPU, spec::Codes::int8);
    EXPECT_TRUE(ops::reads_codes(ctx, of_codes));
    of_codes.choice = ops::LoraChoice::library;
    EXPECT_FALSE(ops::reads_codes(ctx, of_codes));
    dy.codes = testing::random_codes(4, 16, at::kCPU, spec::Codes::int8);
    EXPECT_TRUE(ops::reads_codes(ctx, dy));
    dy.u_TR = at::randn({4, 16}).narrow(1, 0, 8);
    EXPECT_FALSE(ops::reads_codes(ctx, dy)) << "u is among other columns";
}

TEST(Lora, MeasuredCardUsesTheFaster) {
    using Operator = spec::KernelOperator;
    const auto h200 = spec::built_in_kernels({"NVIDIA H200", 90, 132});
    const auto own = [&](Operator op, int64_t tokens, int64_t columns, int64_t rank) {
        const spec::ProductKey u{.op = op, .tokens = tokens, .k = columns, .rank = rank},
            dy{.op = op, .tokens = tokens, .n = columns, .rank = rank};
        return h200->find(op == Operator::lora_u ? u : dy) != nullptr;
    };
    EXPECT_TRUE(own(Operator::lora_u, 512, 4096, 48));
    EXPECT_FALSE(own(Operator::lora_u, 16384, 4096, 48));
    EXPECT_FALSE(own(Operator::lora_u, 512, 14336, 64));
    EXPECT_TRUE(own(Operator::lora_u, 128, 14336, 16));
    EXPECT_FALSE(own(Operator::lora_u, 129, 14336, 16));
    EXPECT_TRUE(own(Operator::lora_dy, 128, 4096, 16));
    EXPECT_TRUE(own(Operator::lora_dy, 16384, 28672, 8));
    EXPECT_FALSE(own(Operator::lora_dy, 16384, 28672, 64));
}

#if UNSLOTH_CUDA
TEST(Lora, OurKernelsRunWhereABlockHasTheSharedMemory) {
    EXPECT_TRUE(ops::lora_runs_on(9, 227 * 1024));
    EXPECT_FALSE(ops::lora_runs_on(12, 99 * 1024)) << "RTX 5090";
    EXPECT_FALSE(ops::lora_runs_on(8, 163 * 1024)) << "A100";
    EXPECT_FALSE(ops::lora_runs_on(8, 99 * 1024)) << "RTX 4090";
}

kernels::LoraPlan plan_of(const std::vector<int64_t>& outputs, int64_t r, int multiprocessors) {
    kernels::LoraBackward p;
    p.tokens = 16384;
    for (const int64_t n : outputs) p.parts[p.part_count++] = {.n = n, .r = r, .rank = r};
    return kernels::lora_plan(p, multiprocessors);
}

TEST(Lora, PlansOfManyTokensUseTheCard) {
    const auto of_h100 = [](const std::vector<int64_t>& outputs, int64_t r) {
        const kernels::LoraPlan plan = plan_of(outputs, r, 132);
        return std::pair{plan.cluster, plan.splits};
    };
    EXPECT_EQ(of_h100({14336, 14336}, 16), std::pair(4, 1)) << "28 strips, 112 blocks";
    EXPECT_EQ(of_h100({4096, 1024, 1024}, 16), std::pair(2, 8)) << "6 strips, 96 blocks";
    EXPECT_EQ(of_h100({18944, 18944}, 16), std::pair(3, 1)) << "38 strips, 114 blocks";
    EXPECT_EQ(of_h100({11008, 11008}, 16), std::pair(2, 3)) << "22 strips, 132 blocks";
    EXPECT_EQ(of_h100({11008, 11008}, 32), std::pair(1, 3)) << "44 strips, 132 blocks";
    EXPECT_EQ(of_h100({18944, 18944}, 32), std::pair(3, 1)) << "74 strips, 222 blocks in two turns";
    for (const int multiprocessors : {78, 114, 132, 148}) {
        for (int64_t strips = 1; strips <= 300; ++strips) {
            const kernels::LoraPlan plan = plan_of({strips * 1024}, 16, multiprocessors);
            const int64_t blocks = strips * plan.cluster * plan.splits;
            const int64_t places = (blocks + multiprocessors - 1) / multiprocessors * multiprocessors;
            EXPECT_GT(3 * blocks, 2 * places) << strips << " strips on " << multiprocessors;
        }
    }
}
#endif

}  // namespace
}  // namespace unsloth
