#include "unsloth/ops/lora.h"

#include "ops/lora_cases.h"
#include "src/ops/lora_cuda.h"
#include "unsloth/core/error.h"
#include "unsloth/spec/kernel_table.h"

namespace unsloth {
namespace {

TEST(Lora, MatchesOracle) {
    testing::check_on_cpu(testing::lora_cases(1), testing::Sums::of_libtorch);
    testing::check_on_cpu(testing::lora_kernel_cases(2), testing::Sums::of_libtorch);
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
#endif

}  // namespace
}  // namespace unsloth
