// Rows and their e4m3 codes on CUDA: the plain CUDA operators' bits, and LibTorch's codes.
#include "gpu/gpu_testing.h"
#include "ops/coded_cases.h"
#include "unsloth/core/error.h"

namespace unsloth {
namespace {

using testing::CodedShape;

class Fp8Gpu : public testing::GpuTest {
  protected:
    Fp8Gpu() {
        const uint64_t seed = std::random_device{}();
        at::manual_seed(seed);
        RecordProperty("seed", std::to_string(seed));
    }
    static at::TensorOptions bf16() { return at::TensorOptions(at::kBFloat16).device(at::kCUDA); }
};

TEST_F(Fp8Gpu, RowsHaveLibTorchsCodes) {
    testing::check_quantize_rows_codes(
        at::kCUDA, at::kBFloat16,
        {{1, 8}, {3, 264}, {9, 2048}, {700, 4096}, {301, 6144}, {50, 14336}, {9, 28672}, {5, 32768}, {0, 16}});
}

TEST_F(Fp8Gpu, RowsOfAnyLengthUpToTheLongest) {
    // [gate | up] of Qwen3-14B, Qwen2.5-7B and Llama-70B, and lengths that leave threads without a pack.
    const int64_t longest = ops::coded_longest_row(at::kCUDA);
    testing::check_quantize_rows_codes(at::kCUDA, at::kBFloat16,
                                       {{4, 32776}, {300, 34816}, {9, 37888}, {7, 40968}, {5, 57344}, {4, longest}});
}

TEST_F(Fp8Gpu, RowsOfLogitsAreReadTwice) {
    testing::check_quantize_rows_codes(at::kCUDA, at::kBFloat16, testing::fp8_vocabularies);
    testing::check_quantize_rows_codes(at::kCUDA, at::kBFloat16, {{300, 128256}, {1, 262144}, {0, 65544}});
    testing::expect_codes_keep_what_is_not_finite(at::kCUDA, at::kBFloat16, 65544);
    testing::expect_codes_keep_what_is_not_finite(at::kCUDA, at::kBFloat16, 128256);
}

TEST_F(Fp8Gpu, ColumnsOfAHeadAreTheRowsOfItsTranspose) {
    testing::check_quantize_columns_fp8(at::kCUDA, at::kBFloat16, testing::fp8_heads);
}

TEST_F(Fp8Gpu, ColumnsAreTheRowsOfTheTranspose) {
    testing::check_quantize_columns_fp8(at::kCUDA, at::kBFloat16,
                                        {{4, 8}, {200, 72}, {128, 64}, {1000, 2056}, {300, 4096}});
}

TEST_F(Fp8Gpu, NormEqualsItsPartsBitForBit) {
    testing::check_rms_norm_codes(at::kCUDA, at::kBFloat16,
                                  {{1, 8}, {5, 264}, {70, 2048}, {700, 4096}, {33, 5120}, {40, 8192}, {0, 16}});
}

TEST_F(Fp8Gpu, NormOfLongRows) {
    // Another order of summation than the plain operator's: its values within a rounding, and their codes.
    ops::Context ctx(at::kCUDA);
    const int64_t rows = 30, columns = 16384;
    const at::Tensor x = testing::fp8_rows(rows, columns).to(at::kCUDA, at::kBFloat16),
                     weight = at::randn({columns}, bf16());
    const at::Tensor y = at::empty_like(x), plain = at::empty_like(x),
                     rstd = at::empty({rows}, bf16().dtype(at::kFloat));
    const ops::CodedMatrix out = testing::poisoned_fp8(rows, columns, at::kCUDA);
    ops::rms_norm_forward(ctx, x, weight, 1e-5, plain, rstd);
    ops::rms_norm_forward_coded(ctx, x, weight, 1e-5, y, rstd, out);
    testing::expect_close(y.cpu(), plain.cpu().to(at::kDouble), {1.01 / 128, 0, 0}, "y");
    testing::expect_codes_of(y, out);
}

TEST_F(Fp8Gpu, SwigluEqualsItsPartsBitForBit) {
    testing::check_swiglu_codes(at::kCUDA, at::kBFloat16,
                                {{1, 8}, {5, 264}, {70, 2312}, {600, 1024}, {301, 14336}, {9, 16384}, {0, 16}});
}

TEST_F(Fp8Gpu, SwigluOfWideLayersEqualsItsPartsBitForBit) {
    testing::check_swiglu_codes(at::kCUDA, at::kBFloat16,
                                {{5, 16392}, {300, 17408}, {70, 18944}, {9, 20488}, {140, 28672}, {4, 32768}});
}

TEST_F(Fp8Gpu, RopeEqualsItsPartsBitForBit) {
    testing::check_rope_codes(at::kCUDA, at::kBFloat16,
                              {{1, 1, 0, 16},
                               {5, 3, 2, 64},
                               {301, 40, 8, 128},
                               {9, 72, 8, 128},
                               {2, 0, 2, 80},
                               {7, 100, 28, 256},
                               {0, 2, 1, 16}});
}

TEST_F(Fp8Gpu, KeepsWhatIsNotFinite) {
    testing::expect_codes_keep_what_is_not_finite(at::kCUDA, at::kBFloat16);
}

TEST_F(Fp8Gpu, NormReportsItsSite) {
    ops::Context ctx(at::kCUDA);
    const at::Tensor outcome = testing::bytes_on(spec::StepOutcome{0, 0, 0, 0, spec::all_finite}, ctx.device());
    ctx.outcome = static_cast<spec::StepOutcome*>(outcome.mutable_data_ptr());
    const at::Tensor x = at::randn({40, 512}, bf16()), weight = at::ones({512}, bf16()),
                     rstd = at::empty({40}, bf16().dtype(at::kFloat));
    const ops::CodedMatrix out = testing::poisoned_fp8(40, 512, at::kCUDA);
    const auto first_bad = [&] {
        spec::StepOutcome read{};
        std::memcpy(&read, outcome.cpu().const_data_ptr(), sizeof read);
        return read.first_bad_site;
    };
    ops::rms_norm_forward_coded(ctx, x, weight, 1e-5, {}, rstd, out, {7});
    EXPECT_EQ(first_bad(), spec::all_finite);
    x[39][511] = NAN;
    ops::rms_norm_forward_coded(ctx, x, weight, 1e-5, {}, rstd, out, {7});
    EXPECT_EQ(first_bad(), 7U);
}

TEST_F(Fp8Gpu, RefusesWhatTheKernelsDoNotTake) {
    ops::Context ctx(at::kCUDA);
    const auto codes = [](int64_t rows, int64_t columns) { return testing::poisoned_fp8(rows, columns, at::kCUDA); };
    EXPECT_NO_THROW(ops::quantize_rows(ctx, at::randn({4, 16}, bf16()), codes(4, 16)));
    EXPECT_THROW(ops::quantize_rows(ctx, at::randn({4, 16}, bf16()).to(at::kFloat), codes(4, 16)), CheckError);
    EXPECT_THROW(ops::quantize_rows(ctx, at::randn({4, 12}, bf16()), codes(4, 12)), CheckError);
    EXPECT_THROW(ops::quantize_rows(ctx, at::randn({4, 20}, bf16()).narrow(1, 0, 16), codes(4, 16)), CheckError);
    const int64_t longer = ops::coded_longest_row(ctx.device()) + 8;
    EXPECT_THROW(ops::rms_norm_forward_coded(ctx, at::randn({1, longer}, bf16()), at::ones({longer}, bf16()), 1e-5, {},
                                             at::empty({1}, bf16().dtype(at::kFloat)), codes(1, longer)),
                 CheckError);
    EXPECT_THROW(ops::quantize_rows(ctx, at::randn({4, longer + 4}, bf16()).narrow(1, 4, longer), codes(4, longer)),
                 CheckError);
    EXPECT_THROW(ops::quantize_columns(ctx, at::randn({6, 16}, bf16()), codes(16, 6)), CheckError);
    const at::Tensor table = at::ones({4, 4}, bf16().dtype(at::kFloat));
    EXPECT_THROW(ops::rope_apply_coded(ctx, at::randn({4, 16}, bf16()), 1, table, table, true, codes(4, 16)),
                 CheckError);
}

}  // namespace
}  // namespace unsloth
