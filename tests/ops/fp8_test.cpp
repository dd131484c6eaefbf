// Rows and their e4m3 codes on the CPU.
#include <gtest/gtest.h>

#include "ops/coded_cases.h"
#include "unsloth/core/error.h"

namespace unsloth {
namespace {

using testing::CodedShape;

class Fp8Test : public ::testing::Test {
  protected:
    Fp8Test() { at::manual_seed(23); }
    const std::vector<CodedShape> shapes = {{1, 1}, {5, 7}, {9, 64}, {3, 264}, {40, 1000}, {0, 16}};
};

TEST_F(Fp8Test, RowsHaveLibTorchsCodes) {
    for (const at::ScalarType type : testing::compute_dtypes)
        testing::check_quantize_rows_codes(at::kCPU, type, shapes);
}

TEST_F(Fp8Test, LongRowsHaveLibTorchsCodes) {
    testing::check_quantize_rows_codes(at::kCPU, at::kBFloat16, {{4, 34816}, {2, 37888}, {2, 57344}, {3, 65537}});
    testing::check_quantize_rows_codes(at::kCPU, at::kBFloat16, testing::fp8_vocabularies);
    testing::check_quantize_columns_fp8(at::kCPU, at::kBFloat16, testing::fp8_heads);
    testing::check_swiglu_codes(at::kCPU, at::kBFloat16, {{4, 17408}, {2, 18944}, {2, 28672}, {3, 18947}});
}

TEST_F(Fp8Test, ServesComputeCapability90Alone) {
    EXPECT_TRUE(ops::coded_serves(spec::Codes::e4m3, 9, 0));
    for (const auto& [major, minor] : {std::pair{7, 5}, {8, 0}, {8, 6}, {8, 9}, {10, 0}, {10, 3}, {12, 0}, {12, 1}})
        EXPECT_FALSE(ops::coded_serves(spec::Codes::e4m3, major, minor)) << major << "." << minor;
    for (const auto& [major, minor] : {std::pair{8, 0}, {8, 9}, {9, 0}, {12, 0}})
        EXPECT_TRUE(ops::coded_serves(spec::Codes::int8, major, minor)) << major << "." << minor;
    EXPECT_FALSE(ops::coded_serves(spec::Codes::int8, 7, 5));
    EXPECT_TRUE(ops::coded_available(at::kCPU, spec::Codes::int8));
}

TEST_F(Fp8Test, EveryCodeIsReached) {
    // All finite e4m3 values times a power of two, and the midpoints between neighbours, which go to the even
    // code.
    const at::Tensor codes = at::arange(127, at::kByte);
    const at::Tensor values = codes.view(at::kFloat8_e4m3fn).to(at::kFloat);
    const at::Tensor middles = (values.narrow(0, 0, 126) + values.narrow(0, 1, 126)) / 2;
    const at::Tensor row = at::cat({values, -values, middles}).unsqueeze(0);
    const ops::CodedMatrix out = testing::poisoned_fp8(1, row.size(1), at::kCPU);
    ops::Context ctx(at::kCPU);
    ops::quantize_rows(ctx, row * 0.25, out);
    EXPECT_EQ(out.scales.item<float>(), 0.25F);
    const at::Tensor made = out.codes.view(at::kByte)[0];
    EXPECT_TRUE(at::equal(made.narrow(0, 0, 127), codes));
    EXPECT_TRUE(at::equal(made.narrow(0, 127, 127), codes + 128));
    const at::Tensor lower = at::arange(126, at::kByte);
    EXPECT_TRUE(at::equal(made.narrow(0, 254, 126), lower + at::bitwise_and(lower, 1)));
}

TEST_F(Fp8Test, RestoresValuesWithinHalfAStep) {
    const at::Tensor x = at::randn({20, 512});
    const ops::CodedMatrix out = testing::poisoned_fp8(20, 512, at::kCPU);
    ops::Context ctx(at::kCPU);
    ops::quantize_rows(ctx, x, out);
    const at::Tensor back = out.codes.to(at::kFloat) * out.scales.unsqueeze(1);
    // Half a step is 2^-4 of the value, or 2^-10 scales below the normal codes.
    const at::Tensor allowed = at::maximum(x.abs() / 16, out.scales.unsqueeze(1) / 1024) * 1.0001;
    EXPECT_TRUE(((back - x).abs() <= allowed).all().item<bool>());
}

TEST_F(Fp8Test, ColumnsAreTheRowsOfTheTranspose) {
    const std::vector<CodedShape> sizes = {{1, 1}, {5, 7}, {64, 9}, {264, 3}, {40, 1000}};
    for (const at::ScalarType type : testing::compute_dtypes)
        testing::check_quantize_columns_fp8(at::kCPU, type, sizes);
}

TEST_F(Fp8Test, NormEqualsItsPartsBitForBit) {
    for (const at::ScalarType type : testing::compute_dtypes) testing::check_rms_norm_codes(at::kCPU, type, shapes);
}

TEST_F(Fp8Test, SwigluEqualsItsPartsBitForBit) {
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) testing::check_swiglu_codes(at::kCPU, type, shapes);
}

TEST_F(Fp8Test, RopeEqualsItsPartsBitForBit) {
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat})
        testing::check_rope_codes(at::kCPU, type,
                                  {{1, 1, 0, 2}, {5, 3, 2, 6}, {7, 5, 1, 64}, {2, 0, 2, 16}, {0, 2, 1, 16}});
}

TEST_F(Fp8Test, KeepsWhatIsNotFinite) {
    for (const at::ScalarType type : testing::compute_dtypes)
        testing::expect_codes_keep_what_is_not_finite(at::kCPU, type);
}

TEST_F(Fp8Test, TakesBothNamesOfTheCodes) {
    ops::Context ctx(at::kCPU);
    const at::Tensor x = at::randn({4, 24});
    const ops::CodedMatrix out = testing::poisoned_fp8(4, 24, at::kCPU);
    ops::quantize_rows(ctx, x, {out.codes.view(at::kByte), out.scales});
    testing::expect_codes_of(x, out);
}

TEST_F(Fp8Test, ViewsOfScratch) {
    const ops::CodedMatrix scratch = testing::poisoned_fp8(8, 100, at::kCPU),
                           view = ops::coded_view(scratch, 5, 96, at::kFloat8_e4m3fn);
    EXPECT_EQ(view.codes.sizes(), at::IntArrayRef({5, 96}));
    EXPECT_EQ(view.codes.const_data_ptr(), scratch.codes.const_data_ptr());
    EXPECT_EQ(view.scales.sizes(), at::IntArrayRef({5}));
    EXPECT_TRUE(view.codes.is_contiguous());
}

TEST_F(Fp8Test, RefusesWrongTensors) {
    ops::Context ctx(at::kCPU);
    const auto codes = [](int64_t rows, int64_t columns) { return testing::poisoned_fp8(rows, columns, at::kCPU); };
    const at::Tensor x = at::randn({4, 16}), rstd = at::empty({4}), weight = at::ones({16});
    EXPECT_NO_THROW(ops::quantize_rows(ctx, x, codes(4, 16)));
    EXPECT_THROW(ops::quantize_rows(ctx, x, codes(4, 24)), CheckError);
    EXPECT_THROW(ops::quantize_rows(ctx, x, codes(5, 16)), CheckError);
    EXPECT_THROW(ops::quantize_rows(ctx, x.to(at::kDouble), codes(4, 16)), CheckError);
    EXPECT_THROW(ops::quantize_rows(ctx, x[0], codes(4, 16)), CheckError);
    EXPECT_THROW(ops::quantize_rows(ctx, x, {at::empty({4, 16}, at::kChar), rstd}), CheckError);
    EXPECT_THROW(ops::quantize_rows(ctx, x, {codes(4, 16).codes, at::empty({4}, at::kDouble)}), CheckError);
    EXPECT_THROW(ops::quantize_columns(ctx, x, codes(4, 16)), CheckError);
    EXPECT_THROW(ops::rms_norm_forward_coded(ctx, x, weight, 1e-5, at::empty({4, 15}), rstd, codes(4, 16)), CheckError);
    EXPECT_THROW(ops::rms_norm_forward_coded(ctx, x, weight, 1e-5, x, rstd, codes(4, 8)), CheckError);
    EXPECT_THROW(ops::swiglu_forward_coded(ctx, x, at::empty({4, 8}), codes(4, 16)), CheckError);
    EXPECT_THROW(ops::swiglu_forward_coded(ctx, x, at::empty({4, 7}), codes(4, 8)), CheckError);
    EXPECT_THROW(ops::swiglu_backward_coded(ctx, at::empty({4, 8}), x, {}, codes(4, 8)), CheckError);
    EXPECT_THROW(ops::swiglu_backward_coded(ctx, at::empty({4, 7}), x, {}, codes(4, 16)), CheckError);
    const at::Tensor table = at::ones({4, 4});
    EXPECT_NO_THROW(ops::rope_apply_coded(ctx, x, 1, table, table, true, codes(4, 16)));
    EXPECT_THROW(ops::rope_apply_coded(ctx, x, 3, table, table, true, codes(4, 16)), CheckError);
    EXPECT_THROW(ops::rope_apply_coded(ctx, x, 1, at::ones({4, 3}), at::ones({4, 3}), true, codes(4, 16)), CheckError);
}

}  // namespace
}  // namespace unsloth
