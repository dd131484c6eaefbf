#include <ATen/Parallel.h>

#include "ops/rows_cases.h"
#include "unsloth/core/error.h"

namespace unsloth {
namespace {

using testing::Layout;

TEST(Rows, MatchesDoublePrecision) {
    testing::check_on_cpu(testing::rows_cases(1));
}

TEST(Rows, CopiesOfEqualTypeKeepEveryBit) {
    ops::Context ctx(at::kCPU);
    const at::Tensor bits = at::arange(-32768, 32768, at::kInt).to(at::kShort).view({256, 256});
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
        const at::Tensor source = bits.view(dtype), out = at::empty({256, 256}, dtype);
        ops::copy_2d(ctx, source, out);
        const at::Tensor numbers = ~source.isnan();
        EXPECT_TRUE(
            at::equal(out.masked_select(numbers).view(at::kShort), source.masked_select(numbers).view(at::kShort)));
        EXPECT_TRUE(out.masked_select(~numbers).isnan().all().item<bool>());
    }
}

TEST(Rows, RoundsToNearestEven) {
    ops::Context ctx(at::kCPU);
    const at::Tensor source =
        at::tensor({1.f + 1.f / 256, 1.f + 3.f / 256, 1.f + 1.01f / 256, -1.f - 1.f / 256}).view({1, 4});
    const at::Tensor out = at::empty({1, 4}, at::kBFloat16);
    ops::copy_2d(ctx, source, out);
    EXPECT_TRUE(
        at::equal(out, at::tensor({1.f, 1.f + 4.f / 256, 1.f + 2.f / 256, -1.f}).view({1, 4}).to(at::kBFloat16)));
}

class DropoutTest : public ::testing::Test {
  protected:
    DropoutTest() { ctx.scalars = &scalars; }

    /// The mask over ones: 1 / (1 - p) or 0.
    at::Tensor mask(const at::Tensor& row, const at::Tensor& offset, double p, ops::DropoutKey key) {
        const at::Tensor ones = at::ones({row.size(0), 4096}), out = at::empty({row.size(0), 4096});
        ops::dropout(ctx, ones, row, offset, p, key, out);
        return out;
    }

    ops::Context ctx{at::kCPU};
    spec::StepScalars scalars = testing::test_scalars();
    const at::Tensor row = at::tensor({4, 4, 9}, at::kInt), offset = at::tensor({0, 1, 0}, at::kInt);
};

TEST_F(DropoutTest, DropsTheAskedShareAndKeepsTheMean) {
    const at::Tensor kept = mask(row, offset, 0.25, {2, 3});
    EXPECT_NEAR((kept == 0).to(at::kDouble).mean().item<double>(), 0.25, 0.02);
    EXPECT_NEAR(kept.mean().item<double>(), 1.0, 0.03);
    EXPECT_TRUE(((kept == 0) | (kept == 1.f / 0.75f)).all().item<bool>());
}

TEST_F(DropoutTest, EveryPartOfTheNameChangesTheMaskAndNothingElseDoes) {
    const at::Tensor base = mask(row, offset, 0.5, {2, 3});
    EXPECT_TRUE(at::equal(base, mask(row, offset, 0.5, {2, 3})));
    EXPECT_FALSE(at::equal(base[0], base[1])) << "another token of the row";
    EXPECT_FALSE(at::equal(base[0], base[2])) << "another row";
    EXPECT_FALSE(at::equal(base, mask(row, offset, 0.5, {3, 3}))) << "another layer";
    EXPECT_FALSE(at::equal(base, mask(row, offset, 0.5, {2, 4}))) << "another projection";
    // A token's mask is its own wherever it stands in the batch.
    EXPECT_TRUE(at::equal(base[2], mask(row.narrow(0, 2, 1).clone(), offset.narrow(0, 2, 1).clone(), 0.5, {2, 3})[0]));
    scalars.step += 1;
    EXPECT_TRUE(at::equal(base, mask(row, offset, 0.5, {2, 3}))) << "the step is no part of the name";
    scalars.epoch += 1;
    EXPECT_FALSE(at::equal(base, mask(row, offset, 0.5, {2, 3}))) << "another epoch";
    scalars.epoch -= 1;
    scalars.seed_lo ^= 1;
    EXPECT_FALSE(at::equal(base, mask(row, offset, 0.5, {2, 3}))) << "another seed";
}

TEST(Rows, BitsDoNotDependOnTheNumberOfThreads) {
    at::manual_seed(5);
    for (const testing::OpCase& op_case :
         {testing::column_sums_case(3000, 700, at::kBFloat16, Layout::packed),
          testing::embedding_backward_case(500, 20, 900, at::kBFloat16, Layout::packed)}) {
        SCOPED_TRACE(op_case.name);
        EXPECT_TRUE(testing::same_bits(testing::run_on_threads(op_case, 1).args.back(),
                                       testing::run_on_threads(op_case, 3).args.back()));
    }
}

TEST(Rows, RefusesWrongTensors) {
    ops::Context ctx(at::kCPU);
    const at::Tensor table = at::randn({5, 8}), out = at::empty({2, 8});
    EXPECT_THROW(ops::gather_rows(ctx, table, at::tensor({1, 5}, at::kInt), out), CheckError);
    EXPECT_THROW(ops::gather_rows(ctx, table, at::tensor({-1, 0}, at::kInt), out), CheckError);
    EXPECT_THROW(ops::gather_rows(ctx, table, at::tensor({1, 2}, at::kLong), out), CheckError);
    EXPECT_THROW(ops::scatter_rows(ctx, out, at::tensor({1, 5}, at::kInt), table), CheckError);
    EXPECT_THROW(ops::copy_2d(ctx, table, at::empty({5, 9})), CheckError);
    EXPECT_THROW(ops::copy_2d(ctx, table, at::empty({8, 5}).t()), CheckError);
    EXPECT_THROW(ops::column_sums(ctx, table, at::empty({8}, at::kHalf)), CheckError);
    const at::Tensor two = at::zeros({2}, at::kInt);
    EXPECT_THROW(ops::dropout(ctx, out, two, two, 0.5, {}, out), CheckError) << "no scalars";
    const spec::StepScalars scalars = testing::test_scalars();
    ctx.scalars = &scalars;
    EXPECT_NO_THROW(ops::dropout(ctx, out, two, two, 0.5, {}, out));
    EXPECT_THROW(ops::dropout(ctx, out, two, two, 1.0, {}, out), CheckError);
    EXPECT_THROW(ops::dropout(ctx, out, two, two, 0.5, {1u << 13, 0}, out), CheckError);
}

}  // namespace
}  // namespace unsloth
