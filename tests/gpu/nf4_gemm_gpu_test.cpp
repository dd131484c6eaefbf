// Tiled 4-bit weights on the GPU: the CPU's tiles bit for bit, exact dequantisation, and every form of both
// kernels against fp64 products and against itself.
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include <iostream>

#include "kernels/nf4_gemm.h"
#include "ops/nf4_gemm_cases.h"
#include "unsloth/core/error.h"
#include "unsloth/ops/norm.h"
#include "unsloth/ops/rows.h"

namespace unsloth {
namespace {

using ops::Nf4GemmChoice;
using Kernel = Nf4GemmChoice::Kernel;

class Nf4GemmGpuTest : public ::testing::Test {
  protected:
    void SetUp() override {
        if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
        gpu = std::make_unique<ops::Context>(at::Device(at::kCUDA, 0));
    }
    std::vector<Nf4GemmChoice> forms(bool transposed) const { return ops::nf4_gemm_forms(gpu->device(), transposed); }
    std::unique_ptr<ops::Context> gpu;
    ops::Context cpu{at::kCPU};
    at::Generator generator = at::detail::createCPUGenerator(23);
};

TEST_F(Nf4GemmGpuTest, TilesAndDequantisationEqualTheCpu) {
    for (const auto& [rows, cols] :
         {std::pair<int64_t, int64_t>{64, 64}, {128, 320}, {320, 1024}, {1024, 4096}, {192, 14336}}) {
        SCOPED_TRACE(cat(rows, " x ", cols));
        const ops::Quant4Tensor host = quant_cases::random_weight(rows, cols, true, generator);
        const ops::Nf4Tiles expected = ops::make_nf4_tiles(cpu, host);
        const ops::Nf4Tiles tiles = ops::make_nf4_tiles(*gpu, ops::upload(*gpu, host.view()));
        EXPECT_TRUE(at::equal(tiles.tiles.cpu(), expected.tiles));
        const at::Tensor wide = at::full({rows, cols + 16}, 7.0, at::device(gpu->device()).dtype(at::kBFloat16));
        ops::dequantize_nf4_tiles(*gpu, tiles, wide.narrow(1, 0, cols));
        EXPECT_TRUE(
            testing::same_bits(wide.cpu(), quant_cases::dequantize_into_wider(cpu, host, at::kBFloat16, 0, 16)));
    }
}

TEST_F(Nf4GemmGpuTest, EveryFormMatchesFp64AndItself) {
    for (const nf4_gemm_cases::Case& c : nf4_gemm_cases::cases) {
        for (const bool transposed : {false, true}) {
            for (const int64_t m : {1, 4, 7, 9, 40, 130, 300}) {
                const nf4_gemm_cases::Product p =
                    nf4_gemm_cases::make(*gpu, c, transposed, m, at::kBFloat16, generator);
                ASSERT_TRUE(ops::nf4_gemm_supported(*gpu, p.args));
                for (const Nf4GemmChoice& form : forms(transposed)) {
                    SCOPED_TRACE(cat(c.rows[0], " x ", c.cols, " tail ", c.tail, " transposed ", transposed, " m ", m,
                                     " groups ", form.token_groups, " strips ", form.strips, " warps ", form.warps,
                                     " tokens ", form.tokens, " split ", form.split));
                    ops::Nf4Gemm args = p.args;
                    const auto run = [&] {
                        args.out = testing::copy_with_storage(p.before, gpu->device());
                        ops::nf4_gemm(*gpu, args, form);
                        return testing::copy_with_storage(args.out, at::kCPU);
                    };
                    const at::Tensor out = run();
                    nf4_gemm_cases::expect_product(p, out, form);
                    EXPECT_TRUE(testing::same_bits(out, run())) << "a second run gave other bits";
                }
            }
        }
    }
}

/// More units than blocks, an odd number of tiles, and more columns than shared memory holds of eight tokens.
TEST_F(Nf4GemmGpuTest, FewTokensOfLargeWeightsMatchFp64) {
    const nf4_gemm_cases::Case large[] = {{{4096, 512, 512}, 4160, 0, false, false}, {{256}, 28672, 16, true, true}};
    for (const nf4_gemm_cases::Case& c : large) {
        for (const int64_t m : {1, 3, 6, 11}) {
            nf4_gemm_cases::Product p = nf4_gemm_cases::make(*gpu, c, false, m, at::kBFloat16, generator);
            for (const int tokens : {4, 8}) {
                SCOPED_TRACE(cat(c.rows[0], " x ", c.cols, " m ", m, " tokens ", tokens));
                p.args.out = testing::copy_with_storage(p.before, gpu->device());
                ops::nf4_gemm(*gpu, p.args, {.kernel = Kernel::few, .tokens = tokens});
                nf4_gemm_cases::expect_product_of_few(p, testing::copy_with_storage(p.args.out, at::kCPU));
            }
        }
    }
}

/// Kernels of a decoding pass start before those ahead have ended: none reads or overwrites what these still work on.
TEST_F(Nf4GemmGpuTest, ProductsThatFollowEachOtherWaitForWhatTheyRead) {
    const nf4_gemm_cases::Case c{{1024}, 1024, 0, false, true};
    for (const int64_t m : {1, 6, 20, 64}) {
        const nf4_gemm_cases::Product p = nf4_gemm_cases::make(*gpu, c, false, m, at::kBFloat16, generator);
        for (const Nf4GemmChoice& form : forms(false)) {
            const auto chain = [&](bool waits) {  // x -> out -> x -> ..., and a copy of what was there in between
                const at::Tensor a = p.args.x.clone(), b = at::zeros_like(a), kept = at::zeros_like(a);
                const at::Tensor weight = at::ones({1024}, a.options()),
                                 rstd = at::zeros({m}, a.options().dtype(at::kFloat));
                for (int turn = 0; turn < 20; ++turn) {
                    ops::Nf4Gemm args = p.args;
                    args.x = turn % 2 == 0 ? a : b, args.out = turn % 2 == 0 ? b : a;
                    ops::nf4_gemm(*gpu, args, form);
                    if (waits) c10::cuda::device_synchronize();
                    ops::copy_2d(*gpu, args.out, kept);
                    if (waits) c10::cuda::device_synchronize();
                    ops::rms_norm_forward(*gpu, kept, weight, 1e-5, args.out, rstd);
                    if (waits) c10::cuda::device_synchronize();
                }
                return at::cat({a, b}).cpu();
            };
            EXPECT_TRUE(testing::same_bits(chain(false), chain(true))) << "m " << m << " tokens " << form.tokens;
        }
    }
}

/// The residual stream is updated in place.
TEST_F(Nf4GemmGpuTest, OutMayBeTheResidual) {
    const nf4_gemm_cases::Case c{{256}, 512, 16, false, true};
    for (const Nf4GemmChoice& form : forms(false)) {
        nf4_gemm_cases::Product p = nf4_gemm_cases::make(*gpu, c, false, 70, at::kBFloat16, generator);
        p.before = testing::copy_with_storage(*p.args.residual, at::kCPU);
        p.args.out = *p.args.residual;
        ops::nf4_gemm(*gpu, p.args, form);
        nf4_gemm_cases::expect_product(p, testing::copy_with_storage(p.args.out, at::kCPU), form);
    }
}

/// Every form of the Hopper kernel with a tail, UNSLOTH_TEST_LAUNCHES times (1000): stages of the tail were once handed
/// back before the warps that decode scales had seen them, and one launch in some ten thousand did not end.
TEST_F(Nf4GemmGpuTest, HopperFormsEnd) {
    if (forms(false).back().kernel != Kernel::sm90) GTEST_SKIP() << "not Hopper, or not built for it";
    const nf4_gemm_cases::Case c{{4096, 1024, 1024}, 4096, 48, false, false};
    nf4_gemm_cases::Product p = nf4_gemm_cases::make(*gpu, c, false, 1, at::kBFloat16, generator);
    const char* const asked = std::getenv("UNSLOTH_TEST_LAUNCHES");
    const int rounds = asked != nullptr ? std::atoi(asked) : 1000;
    for (const int tokens : {16, 32, 64, 128, 256}) {
        for (int split = 1; split <= 8; ++split) {
            if (!kernels::nf4_gemm_sm90_has({tokens, split})) continue;
            if (kernels::nf4_gemm_sm90_has({tokens, split, /*pairs=*/true})) {
                for (int launch = 0; launch < rounds; ++launch)
                    ops::nf4_gemm(*gpu, p.args, {.kernel = Kernel::sm90_pairs, .tokens = tokens, .split = split});
                c10::cuda::device_synchronize();
                nf4_gemm_cases::expect_product_of_few(p, testing::copy_with_storage(p.args.out, at::kCPU));
            }
            SCOPED_TRACE(cat("tokens ", tokens, ", split ", split));
            for (int launch = 0; launch < rounds; ++launch)
                ops::nf4_gemm(*gpu, p.args, {.kernel = Kernel::sm90, .tokens = tokens, .split = split});
            c10::cuda::device_synchronize();
            nf4_gemm_cases::expect_product(p, testing::copy_with_storage(p.args.out, at::kCPU));
        }
    }
}

/// What the table names is built, and what the rule does where there is none.
TEST_F(Nf4GemmGpuTest, ChosenFormsExist) {
    spec::KernelTable ampere;
    ampere.card = {"NVIDIA A100-SXM4-80GB", 80, 108};
    for (const spec::KernelTable& table : {*spec::built_in_kernels({"NVIDIA H200", 90, 132}), ampere})
        for (const auto& [n, k] : {std::pair<int64_t, int64_t>{4096, 4096},
                                   {1024, 4096},
                                   {6144, 4096},
                                   {14336, 4096},
                                   {28672, 4096},
                                   {4096, 14336},
                                   {8192, 28672}}) {
            for (const bool transposed : {false, true}) {
                for (int64_t m = 1; m < 40000; m += 1 + m / 8) {
                    const Nf4GemmChoice choice = ops::nf4_gemm_choice(table, m, n, k, transposed);
                    if (choice.kernel == Kernel::portable) {
                        EXPECT_TRUE(kernels::nf4_gemm_has({choice.token_groups, choice.strips, choice.warps}));
                    } else if (choice.kernel == Kernel::sm90_pairs) {
                        EXPECT_TRUE(!transposed && kernels::nf4_gemm_sm90_has({choice.tokens, choice.split, true}));
                    } else if (choice.kernel == Kernel::few) {
                        EXPECT_TRUE(!transposed && kernels::nf4_gemm_few_has(choice.tokens));
                    } else if (choice.kernel == Kernel::sm90) {
                        EXPECT_TRUE(kernels::nf4_gemm_sm90_has({choice.tokens, choice.split}));
                    }
                }
            }
        }
}

TEST_F(Nf4GemmGpuTest, RefusesUnalignedRowsAndUnbuiltForms) {
    nf4_gemm_cases::Product p =
        nf4_gemm_cases::make(*gpu, nf4_gemm_cases::cases[1], false, 5, at::kBFloat16, generator);
    EXPECT_THROW(ops::nf4_gemm(*gpu, p.args, {}), CheckError);
    EXPECT_THROW(ops::nf4_gemm(*gpu, p.args, {Kernel::portable, 3, 1, 8}), CheckError);
    EXPECT_THROW(ops::nf4_gemm(*gpu, p.args, {.kernel = Kernel::sm90, .tokens = 48, .split = 1}), CheckError);
    p.args.out = testing::copy_with_storage(
        testing::poisoned_slice(p.args.out.sizes(), at::kBFloat16, testing::Layout::unaligned), gpu->device());
    EXPECT_FALSE(ops::nf4_gemm_supported(*gpu, p.args));
    EXPECT_THROW(ops::nf4_gemm(*gpu, p.args, {Kernel::portable, 1, 2, 8}), CheckError);
}

}  // namespace
}  // namespace unsloth
