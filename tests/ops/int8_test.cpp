// Rows and their int8 codes on the CPU, and weights'.
#include <gtest/gtest.h>

#include "ops/coded_cases.h"
#include "unsloth/core/error.h"

namespace unsloth {
namespace {

using spec::Codes;
using testing::CodedShape;

class Int8Test : public ::testing::Test {
  protected:
    Int8Test() : ctx(at::kCPU) { at::manual_seed(29); }
    ops::Context ctx;
    const std::vector<CodedShape> shapes = {{1, 1}, {5, 7}, {9, 256}, {3, 264}, {40, 1000}, {0, 16}};
};

TEST_F(Int8Test, RowsHaveTheRulesCodes) {
    for (const at::ScalarType type : testing::compute_dtypes)
        testing::check_quantize_rows_codes(at::kCPU, type, shapes, Codes::int8);
}

TEST_F(Int8Test, WhatMakesRowsEqualsItsPartsBitForBit) {
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
        testing::check_rms_norm_codes(at::kCPU, type, shapes, Codes::int8);
        testing::check_swiglu_codes(at::kCPU, type, shapes, Codes::int8);
        testing::check_rope_codes(at::kCPU, type, {{1, 1, 0, 2}, {5, 3, 2, 6}, {7, 5, 1, 64}, {0, 2, 1, 16}},
                                  Codes::int8);
    }
}

TEST_F(Int8Test, KeepsWhatIsNotFinite) {
    for (const at::ScalarType type : testing::compute_dtypes)
        testing::expect_codes_keep_what_is_not_finite(at::kCPU, type, 600, Codes::int8);
}

ops::CodedMatrix weight_codes(int64_t rows, int64_t columns) {
    return {at::zeros({rows, columns}, at::kChar), at::full({rows}, NAN), at::zeros({columns}, at::kBFloat16)};
}

at::Tensor values_of(const ops::CodedMatrix& w) {
    return w.codes.to(at::kFloat) * w.scales.unsqueeze(1) * w.factors.to(at::kFloat);
}

TEST_F(Int8Test, OrdinaryWeightsAreNotLevelled) {
    const at::Tensor w = at::randn({512, 300}).to(at::kBFloat16);
    const ops::CodedMatrix rows = weight_codes(512, 300), columns = weight_codes(300, 512);
    ops::quantize_rows(ctx, w, rows);
    ops::quantize_columns(ctx, w, columns);
    EXPECT_TRUE((rows.factors == 1).all().item<bool>());
    EXPECT_TRUE((columns.factors == 1).all().item<bool>());
    const at::Tensor half_a_step = rows.scales.unsqueeze(1) * 0.5001;
    EXPECT_TRUE(((values_of(rows) - w.to(at::kFloat)).abs() <= half_a_step).all().item<bool>());
    EXPECT_TRUE(
        ((values_of(columns) - w.t().to(at::kFloat)).abs() <= columns.scales.unsqueeze(1) * 0.5001).all().item<bool>());
}

TEST_F(Int8Test, ColumnsOfAnotherSizeAreLevelled) {
    at::Tensor w = at::randn({400, 64});
    w.select(1, 3).div_(64);
    w.select(1, 9).mul_(1000);
    w.select(1, 20).zero_();
    const ops::CodedMatrix out = weight_codes(400, 64);
    ops::quantize_rows(ctx, w, out);
    EXPECT_LE(out.factors[3].item<float>(), 1.0F / 16);
    EXPECT_GE(out.factors[9].item<float>(), 256);
    EXPECT_EQ(out.factors[20].item<float>(), 1);
    EXPECT_TRUE((out.codes.select(1, 20) == 0).all().item<bool>());
    // Each column as exactly as the others: a step is no larger than one of theirs would be.
    const at::Tensor off = (values_of(out) - w).abs().amax(0), largest = w.abs().amax(0);
    EXPECT_LT(off[3].item<float>(), largest[3].item<float>() / 60);
    EXPECT_LT(off[9].item<float>(), largest[9].item<float>() / 60);
    // Rows of x take the factors, so that the product is the same.
    const at::Tensor x = at::randn({8, 64});
    ops::CodedMatrix codes = testing::poisoned_codes(8, 64, at::kCPU, Codes::int8);
    codes.factors = out.factors;
    ops::quantize_rows(ctx, x, codes);
    const at::Tensor y = at::empty({8, 400});
    ops::gemm_coded(ctx, {.x = codes, .w = out, .out = y});
    const at::Tensor expected = x.mm(w.t());
    EXPECT_LT(((y - expected).norm() / expected.norm()).item<double>(), 0.03);
}

TEST_F(Int8Test, RefusesWrongTensors) {
    const at::Tensor x = at::randn({8, 64});
    ops::CodedMatrix w = weight_codes(8, 64);
    w.factors = at::Tensor();
    EXPECT_THROW(ops::quantize_rows(ctx, x, w), CheckError);
    ops::CodedMatrix codes = testing::poisoned_codes(8, 64, at::kCPU, Codes::int8);
    codes.scales = at::empty({2, 8});
    EXPECT_THROW(ops::quantize_rows(ctx, x, codes), CheckError);
    codes.scales = at::empty({8});  // a weight's
    EXPECT_THROW(ops::rms_norm_forward_coded(ctx, x, at::ones({64}), 1e-5, {}, at::empty({8}), codes), CheckError);
    codes = testing::poisoned_codes(8, 64, at::kCPU, Codes::int8);
    codes.factors = at::ones({64});
    EXPECT_THROW(ops::quantize_rows(ctx, x, codes), CheckError);
    // Products of unlike kinds.
    const ops::CodedMatrix rows = testing::poisoned_codes(8, 64, at::kCPU, Codes::int8),
                           e4m3 = testing::poisoned_fp8(16, 64, at::kCPU);
    EXPECT_THROW(ops::gemm_coded(ctx, {.x = rows, .w = e4m3, .out = at::empty({8, 16})}), CheckError);
    EXPECT_THROW(ops::gemm_coded(ctx, {.x = rows, .w = rows, .out = at::empty({8, 8})}), CheckError);
}

}  // namespace
}  // namespace unsloth
