#include "unsloth/ops/lora.h"

#include "ops/lora_cases.h"
#include "unsloth/core/error.h"

namespace unsloth {
namespace {

TEST(Lora, MatchesOracle) {
    testing::check_on_cpu(testing::lora_cases(1));
    testing::check_on_cpu(testing::lora_kernel_cases(2));
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

TEST(Lora, UnmeasuredCardsUseTheLibrary) {
    using ops::LoraProduct;
    for (const LoraProduct product : {LoraProduct::u, LoraProduct::dy})
        for (const int64_t tokens : {1, 512, 16384})
            for (const auto& [name, major] :
                 {std::pair{"NVIDIA A100-SXM4-80GB", 8}, {"NVIDIA H100 80GB HBM3", 9}, {"NVIDIA B200", 10}})
                EXPECT_FALSE(ops::lora_kernel_pays(product, {tokens, 4096, 16}, {name, major})) << name;
}

TEST(Lora, MeasuredCardUsesTheFaster) {
    using ops::LoraProduct;
    const ops::LoraDevice h200 = {"NVIDIA H200", 9};
    EXPECT_TRUE(ops::lora_kernel_pays(LoraProduct::u, {512, 4096, 48}, h200));
    EXPECT_FALSE(ops::lora_kernel_pays(LoraProduct::u, {16384, 4096, 48}, h200));
    EXPECT_FALSE(ops::lora_kernel_pays(LoraProduct::u, {512, 14336, 64}, h200));
    EXPECT_TRUE(ops::lora_kernel_pays(LoraProduct::dy, {128, 4096, 16}, h200));
    EXPECT_TRUE(ops::lora_kernel_pays(LoraProduct::dy, {16384, 28672, 8}, h200));
    EXPECT_FALSE(ops::lora_kernel_pays(LoraProduct::dy, {16384, 28672, 64}, h200));
}

}  // namespace
}  // namespace unsloth
