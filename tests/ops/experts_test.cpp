#include "ops/nf4_experts_cases.h"
#include "unsloth/core/error.h"

namespace unsloth {
namespace {

TEST(Experts, RouterMatchesAutogradInDoublePrecision) {
    testing::check_on_cpu(testing::route_cases(1));
}

TEST(Experts, RouterTakesTheLowerOfEqualLogitsAndNaNFirst) {
    testing::expect_router_orders(at::kCPU);
}

TEST(Experts, OrderIsThatOfAStableSort) {
    testing::check_on_cpu(testing::order_cases(2));
}

TEST(Experts, WeightedSumAndItsGradientMatchDoublePrecision) {
    testing::check_on_cpu(testing::combine_cases(3));
}

TEST(Experts, GroupedProductsMatchDoublePrecision) {
    testing::check_on_cpu(testing::grouped_cases(4), testing::Sums::of_libtorch);
}

TEST(Experts, InTilesAreThoseDequantised) {
    testing::expect_nf4_experts(at::kCPU, at::kBFloat16);
    testing::expect_nf4_experts(at::kCPU, at::kFloat);
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat})
        testing::expect_nf4_experts(at::kCPU, type, testing::InTiles::mxfp4);
}

TEST(Experts, BalanceMatchesTransformersLoss) {
    testing::check_on_cpu(testing::balance_cases(5));
}

TEST(Experts, BalanceOfNothingIsZero) {
    ops::Context ctx(at::kCPU);
    const spec::StepScalars scalars = testing::test_scalars();
    ctx.scalars = &scalars;
    const at::Tensor sums = at::zeros({2, 4}, at::kDouble), loss = at::full({1}, NAN), slopes = at::full({4}, NAN);
    ops::balance(ctx, {.sums_2E = sums, .choices = 2, .coefficient = 1, .loss = loss, .slopes_E = slopes});
    EXPECT_EQ(loss.item<float>(), 0.f);
    EXPECT_TRUE(at::equal(slopes, at::zeros({4})));
}

TEST(Experts, RefusesWrongTensors) {
    ops::Context ctx(at::kCPU);
    const at::TensorOptions ints(at::kInt);
    const at::Tensor logits = at::randn({2, 4}), ids = at::zeros({2, 2}, ints), weights = at::zeros({2, 2});
    const at::Tensor five = at::zeros({2, 5}, ints), many = at::randn({2, 257});
    EXPECT_THROW(ops::route(ctx, {.logits_TE = logits, .ids_Tk = five, .weights_Tk = at::zeros({2, 5})}), CheckError);
    EXPECT_THROW(ops::route(ctx, {.logits_TE = many, .ids_Tk = ids, .weights_Tk = weights}), CheckError);
    EXPECT_THROW(ops::route(ctx, {.logits_TE = logits.to(at::kHalf), .ids_Tk = ids, .weights_Tk = weights}),
                 CheckError);
    const ops::ExpertOrder order{at::zeros({4}, ints), at::zeros({4}, ints), at::zeros({2, 2}, ints)};
    EXPECT_NO_THROW(ops::order_by_expert(ctx, ids, order));
    EXPECT_THROW(ops::order_by_expert(ctx, at::full({2, 2}, 4, ints), order), CheckError);
    EXPECT_THROW(ops::order_by_expert(ctx, at::full({2, 2}, -1, ints), order), CheckError);
    const at::Tensor z = at::randn({4, 8}), y = at::empty({2, 8});
    EXPECT_THROW(
        ops::combine(ctx, {.z_nD = z, .places_Tk = at::full({2, 2}, 4, ints), .weights_Tk = weights, .y_TD = y}),
        CheckError);
    const at::Tensor w = at::randn({2, 6, 8}), out = at::empty({4, 6}), ends = at::tensor({1, 4}, at::kInt);
    EXPECT_NO_THROW(ops::grouped_product(ctx, {.x_nK = z, .w_ENK = w, .ends_E = ends, .out_nN = out}));
    EXPECT_THROW(
        ops::grouped_product(ctx, {.x_nK = z, .w_ENK = w, .ends_E = ends, .out_nN = out, .transpose_w = false}),
        CheckError);
    EXPECT_THROW(ops::grouped_product(ctx, {.x_nK = z, .w_ENK = w, .ends_E = ends - 1, .out_nN = out}), CheckError);
    EXPECT_THROW(
        ops::grouped_product(ctx, {.x_nK = z, .w_ENK = w, .ends_E = at::tensor({4, 1}, at::kInt), .out_nN = out}),
        CheckError);
    EXPECT_THROW(ops::grouped_gradient(ctx, {.a_nM = z, .b_nN = out, .ends_E = ends, .out_EMN = at::empty({2, 6, 8})}),
                 CheckError);
}

}  // namespace
}  // namespace unsloth
