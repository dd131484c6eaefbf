// LoRA's thin products on a GPU: library and kernels against the oracle, and their speed beside one another.
#include <ATen/cuda/CUDAContext.h>

#include <iostream>

#include "gpu/gpu_testing.h"
#include "kernels/common/launch.h"
#include "ops/lora_cases.h"
#include "src/ops/lora_cuda.h"
#include "unsloth/ops/gemm.h"

namespace unsloth {
namespace {

class LoraGpu : public testing::GpuTest {};

bool kernels_run() {
    const cudaDeviceProp& card = *at::cuda::getCurrentDeviceProperties();
    return ops::lora_runs_on(card.major, card.sharedMemPerBlockOptin) && kernels::built_for_hopper();
}

TEST_F(LoraGpu, MatchesOracleAndCpu) {
    testing::check_on_gpu(testing::lora_cases);
}

TEST_F(LoraGpu, KernelsMatchOracleAndCpu) {
    if (!kernels_run()) GTEST_SKIP() << "the kernels need clusters: a card and a build for sm_90";
    testing::check_on_gpu(testing::lora_kernel_cases);
}

TEST_F(LoraGpu, TokensHaveTheirOwnersColumns) {
    ops::Context ctx(at::kCUDA);
    testing::check_lora_u_of_owners(ctx, ops::LoraChoice::library);
    if (kernels_run()) testing::check_lora_u_of_owners(ctx, ops::LoraChoice::kernel);
}

TEST_F(LoraGpu, KernelsReadCodes) {
    if (!kernels_run()) GTEST_SKIP() << "the kernels need clusters: a card and a build for sm_90";
    ops::Context ctx(at::kCUDA);
    ctx.workspace = at::empty({int64_t{32} << 20}, at::TensorOptions(at::kByte).device(at::kCUDA));
    testing::check_lora_of_codes(ctx);
}

/// v and dB of kernels and library.
void expect_agreement(int64_t tokens, const testing::LoraModules& modules) {
    ops::Context ctx(at::kCUDA);
    const auto options = at::TensorOptions(at::kBFloat16).device(at::kCUDA);
    std::vector<ops::LoraSlice> slices = testing::lora_slices(modules), again = slices;
    const int64_t n = testing::outputs_of(slices), r = testing::ranks_of(slices);
    ctx.workspace = at::empty({ops::gemm_workspace(ctx.device())}, at::TensorOptions(at::kByte).device(at::kCUDA));
    const at::Tensor dy = at::randn({tokens, n + r}, options), b = at::zeros({n, r}, options),
                     u = at::randn({tokens, r}, options);
    const at::Tensor v = at::empty({tokens, r}, options);
    for (std::size_t i = 0; i < slices.size(); ++i) {
        const ops::LoraSlice& s = slices[i];
        b.narrow(0, s.n_begin, s.n).narrow(1, s.r_begin, s.r).normal_(0, 0.05);
        slices[i].db = at::zeros({s.n, s.rank}, options.dtype(at::kFloat));
        again[i].db = at::zeros_like(slices[i].db);
    }
    const at::Tensor tail = dy.narrow(1, n, r), columns = dy.narrow(1, 0, n);
    ops::lora_dy(
        ctx,
        {.dy_TN = columns, .b_NR = b, .u_TR = u, .v_TR = tail, .slices = slices, .choice = ops::LoraChoice::kernel});
    ops::lora_dy(
        ctx, {.dy_TN = columns, .b_NR = b, .u_TR = u, .v_TR = v, .slices = again, .choice = ops::LoraChoice::library});
    const auto distance = [](const at::Tensor& x, const at::Tensor& y) {
        return ((x.to(at::kDouble) - y.to(at::kDouble)).norm() / y.to(at::kDouble).norm()).item<double>();
    };
    EXPECT_LT(distance(tail, v), 1e-3);  // both rounded to bf16 from nearly the same sums
    for (std::size_t i = 0; i < slices.size(); ++i) EXPECT_LT(distance(slices[i].db, again[i].db), 1e-5);
}

/// The sizes of 8B, 7B and 3B models: what the small cases do not reach (splits of the tokens, many strips, runs of the
/// workspace; on a card of 132 multiprocessors a strip's three blocks, three pairs, and three blocks without a
/// cluster).
TEST_F(LoraGpu, KernelsAgreeWithTheLibrary) {
    if (!kernels_run()) GTEST_SKIP() << "the kernels need clusters: a card and a build for sm_90";
    for (const int64_t tokens : {129, 4100}) {
        expect_agreement(tokens, {{4096, 16}, {1024, 16}, {1024, 16}});
        expect_agreement(tokens, {{18944, 16}, {18944, 16}});
        expect_agreement(tokens, {{11008, 16}, {11008, 16}});
        expect_agreement(tokens, {{11008, 32}, {11008, 32}});
    }
}

/// Run by hand: --gtest_also_run_disabled_tests --gtest_filter='LoraGpu.DISABLED_Speed'. Microseconds, Llama-3.1-8B
/// and gate and up of Qwen2.5-7B and 3B, rank 16.
TEST_F(LoraGpu, DISABLED_Speed) {
    ops::Context ctx(at::kCUDA);
    ctx.workspace = at::empty({ops::gemm_workspace(ctx.device())}, at::TensorOptions(at::kByte).device(at::kCUDA));
    const auto options = at::TensorOptions(at::kBFloat16).device(at::kCUDA);
    struct GroupShape {
        const char* name;
        int64_t k;
        testing::LoraModules modules;
    };
    const std::vector<GroupShape> groups = {{"qkv", 4096, {{4096, 16}, {1024, 16}, {1024, 16}}},
                                            {"o", 4096, {{4096, 16}}},
                                            {"gate_up", 4096, {{14336, 16}, {14336, 16}}},
                                            {"down", 14336, {{4096, 16}}},
                                            {"gate_up of Qwen2.5-7B", 3584, {{18944, 16}, {18944, 16}}},
                                            {"gate_up of Qwen2.5-3B", 2048, {{11008, 16}, {11008, 16}}}};
    for (const int64_t tokens : {128, 512, 2048, 4096, 16384}) {
        for (const GroupShape& group : groups) {
            std::vector<ops::LoraSlice> slices = testing::lora_slices(group.modules);
            const int64_t n = testing::outputs_of(slices), r = testing::ranks_of(slices), k = group.k;
            const at::Tensor x = at::randn({tokens, k + r}, options), dy = at::randn({tokens, n + r}, options);
            const at::Tensor buffer = at::zeros({n + r, k + r}, options), u = at::randn({tokens, r}, options);
            buffer.narrow(0, n, r).narrow(1, 0, k).normal_(0, 0.02);
            for (ops::LoraSlice& s : slices) {
                buffer.narrow(0, s.n_begin, s.n).narrow(1, k + s.r_begin, s.r).normal_(0, 0.02);
                s.da = at::zeros({s.rank, k}, options.dtype(at::kFloat));
                s.db = at::zeros({s.n, s.rank}, options.dtype(at::kFloat));
            }
            for (const ops::LoraChoice choice : {ops::LoraChoice::library, ops::LoraChoice::kernel}) {
                const double u_ms = testing::milliseconds_of([&] {
                    ops::lora_u(ctx, {.x_TK = x.narrow(1, 0, k),
                                      .a_RK = buffer.narrow(0, n, r).narrow(1, 0, k),
                                      .u_TR = x.narrow(1, k, r),
                                      .copy_TR = u,
                                      .choice = choice});
                });
                const double dy_ms = testing::milliseconds_of([&] {
                    ops::lora_dy(ctx, {.dy_TN = dy.narrow(1, 0, n),
                                       .b_NR = buffer.narrow(0, 0, n).narrow(1, k, r),
                                       .u_TR = u,
                                       .v_TR = dy.narrow(1, n, r),
                                       .slices = slices,
                                       .choice = choice});
                });
                const double da_ms = testing::milliseconds_of([&] {
                    ops::lora_da(ctx, {.v_TR = dy.narrow(1, n, r), .x_TK = x.narrow(1, 0, k), .slices = slices});
                });
                std::cout << tokens << ' ' << group.name
                          << (choice == ops::LoraChoice::kernel ? " kernel " : " library") << "  u " << 1e3 * u_ms
                          << "  v and dB " << 1e3 * dy_ms << "  dA " << 1e3 * da_ms << '\n';
            }
            for (const spec::Codes codes : {spec::Codes::int8, spec::Codes::e4m3}) {
                const auto random_codes = [&](int64_t columns) -> ops::CodedMatrix {
                    const bool int8 = codes == spec::Codes::int8;
                    const at::Tensor values =
                                         at::randint(int8 ? -127 : 0, int8 ? 128 : 127, {tokens, columns}, options),
                                     scales = at::rand({int8 ? ops::int8_blocks(columns) : 1, tokens}, options);
                    if (!int8) return {values.to(at::kByte), scales.to(at::kFloat).select(0, 0)};
                    return {values.to(at::kChar), scales.to(at::kFloat), at::ones({columns}, options)};
                };
                ops::LoraU of_x{.a_RK = buffer.narrow(0, n, r).narrow(1, 0, k),
                                .u_TR = x.narrow(1, k, r),
                                .copy_TR = u,
                                .codes = random_codes(k)};
                ops::LoraDy of_dy{.b_NR = buffer.narrow(0, 0, n).narrow(1, k, r),
                                  .u_TR = u,
                                  .v_TR = dy.narrow(1, n, r),
                                  .slices = slices,
                                  .codes = random_codes(n)};
                const double u_ms = testing::milliseconds_of([&] { ops::lora_u(ctx, of_x); });
                const double dy_ms = testing::milliseconds_of([&] { ops::lora_dy(ctx, of_dy); });
                std::cout << tokens << ' ' << group.name << (codes == spec::Codes::int8 ? " int8" : " e4m3") << "  u "
                          << 1e3 * u_ms << "  v and dB " << 1e3 * dy_ms << '\n';
            }
        }
    }
}

}  // namespace
}  // namespace unsloth
