// Rows and their int8 codes on CUDA: the plain CUDA operators' bits, and the rule's codes.
#include "gpu/gpu_testing.h"
#include "ops/coded_cases.h"
#include "unsloth/core/error.h"

namespace unsloth {
namespace {

using spec::Codes;

class Int8Gpu : public testing::GpuTest {
  protected:
    Int8Gpu() {
        const uint64_t seed = std::random_device{}();
        at::manual_seed(seed);
        RecordProperty("seed", std::to_string(seed));
    }
};

TEST_F(Int8Gpu, RowsHaveTheRulesCodes) {
    const int64_t longest = ops::coded_longest_row(at::kCUDA);
    testing::check_quantize_rows_codes(at::kCUDA, at::kBFloat16,
                                       {{1, 8},
                                        {3, 264},
                                        {9, 2048},
                                        {700, 4096},
                                        {301, 6144},
                                        {50, 14336},
                                        {9, 28672},
                                        {5, 37888},
                                        {4, longest},
                                        {0, 16}},
                                       Codes::int8);
}

TEST_F(Int8Gpu, NormEqualsItsPartsBitForBit) {
    testing::check_rms_norm_codes(at::kCUDA, at::kBFloat16,
                                  {{1, 8}, {5, 264}, {70, 2048}, {700, 4096}, {33, 5120}, {40, 8192}, {0, 16}},
                                  Codes::int8);
}

TEST_F(Int8Gpu, SwigluEqualsItsPartsBitForBit) {
    // Columns that are no multiple of a block go by two kernels in the backward pass.
    testing::check_swiglu_codes(
        at::kCUDA, at::kBFloat16,
        {{1, 8}, {5, 264}, {70, 2312}, {600, 1024}, {301, 14336}, {70, 18944}, {9, 28672}, {0, 16}}, Codes::int8);
}

TEST_F(Int8Gpu, RopeEqualsItsPartsBitForBit) {
    testing::check_rope_codes(at::kCUDA, at::kBFloat16,
                              {{1, 1, 0, 16},
                               {5, 3, 2, 64},
                               {301, 40, 8, 128},
                               {9, 72, 8, 128},
                               {9, 12, 4, 96},
                               {2, 0, 2, 80},
                               {7, 100, 28, 256},
                               {0, 2, 1, 16}},
                              Codes::int8);
}

TEST_F(Int8Gpu, KeepsWhatIsNotFinite) {
    testing::expect_codes_keep_what_is_not_finite(at::kCUDA, at::kBFloat16, 1024, Codes::int8);
}

TEST_F(Int8Gpu, WeightsHaveTheCpusCodes) {
    ops::Context cpu(at::kCPU), cuda(at::kCUDA);
    at::Tensor w = at::randn({5000, 264});
    w.select(1, 7).mul_(300);
    w.select(0, 9).div_(300);
    w = w.to(at::kBFloat16);
    for (const bool transposed : {false, true}) {
        const int64_t rows = transposed ? 264 : 5000, columns = transposed ? 5000 : 264;
        const auto made = [&](ops::Context& ctx) {
            const auto options = at::TensorOptions().device(ctx.device());
            const ops::CodedMatrix out{at::zeros({rows, columns}, options.dtype(at::kChar)),
                                       at::zeros({rows}, options.dtype(at::kFloat)),
                                       at::zeros({columns}, options.dtype(at::kBFloat16))};
            if (transposed)
                ops::quantize_columns(ctx, w.to(ctx.device()), out);
            else
                ops::quantize_rows(ctx, w.to(ctx.device()), out);
            return out;
        };
        const ops::CodedMatrix expected = made(cpu), out = made(cuda);
        EXPECT_TRUE(at::allclose(out.scales.cpu(), expected.scales, 1e-6, 0));
        EXPECT_TRUE(at::equal(out.factors.cpu(), expected.factors));
        // A quotient on the edge between two codes may go either way.
        const at::Tensor off = (out.codes.cpu().to(at::kInt) - expected.codes.to(at::kInt)).abs();
        EXPECT_LE(off.max().item<int>(), 1);
        EXPECT_LT((off > 0).sum().item<int64_t>(), 200);  // of 1.3 million
    }
}

}  // namespace
}  // namespace unsloth
