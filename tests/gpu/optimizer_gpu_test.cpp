// AdamW and the gradient norm on the GPU: the same bits as on the CPU, which tests/ops compares with the
// references.
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <limits>

#include "ops/optimizer_cases.h"
#include "unsloth/ops/optimizer.h"

namespace unsloth {
namespace {

using golden::same_bits;
using golden::StepState;
using ops::AdamwSettings;
using ops::AdamwState;
using ops::block_8bit;
using ops::block_decays;
using ops::Context;
using namespace optimizer_cases;

class OptimizerGpuTest : public ::testing::Test {
  protected:
    void SetUp() override {
        if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
        gpu = std::make_unique<Context>(at::Device(at::kCUDA, 0));
    }
    Context cpu{at::kCPU};
    std::unique_ptr<Context> gpu;
    at::Generator generator = at::detail::createCPUGenerator(5);
};

/// Gradients over many magnitudes, some zero, so that all decades of the maps are met.
at::Tensor wide_gradients(int64_t elements, at::Generator generator) {
    const at::Tensor magnitude = at::pow(10.0, at::rand({elements}, generator) * -8.0);
    const at::Tensor kept = at::rand({elements}, generator) > 0.1;
    return at::randn({elements}, generator) * magnitude * kept;
}

TEST_F(OptimizerGpuTest, StepsEqualTheCpuBitForBit) {
    std::vector<uint8_t> flags;
    for (int block = 0; block < 67; ++block)
        flags.push_back(static_cast<uint8_t>((block % 3 != 0 ? block_8bit : 0) | (block % 2 != 0 ? block_decays : 0) |
                                             block / 5 % 4 << ops::block_rate_shift));
    AdamwState on_cpu = make_state(flags, at::kCPU);
    on_cpu.params_P.copy_(at::randn({67 * 256}, generator));
    AdamwState on_gpu = copy_of(on_cpu, gpu->device());
    const AdamwSettings settings{.weight_decay = 0.1, .rate_factors = {1, 16, 0.01, 3}};
    StepState cpu_step(cpu), gpu_step(*gpu);
    cpu_step.outcome.clip = gpu_step.outcome.clip = 0.37F;
    for (uint32_t number = 1; number <= 12; ++number) {
        on_cpu.grads_P.copy_(wide_gradients(67 * 256, generator));
        on_gpu.grads_P.copy_(on_cpu.grads_P);
        set_step(cpu_step, settings, 1e-2, number);
        set_step(gpu_step, settings, 1e-2, number);
        ops::adamw_step(cpu, on_cpu, settings);
        ops::adamw_step(*gpu, on_gpu, settings);
        const std::vector<at::Tensor> expected = all_tensors(on_cpu), got = all_tensors(on_gpu);
        for (std::size_t i = 0; i < expected.size(); ++i)
            ASSERT_TRUE(same_bits(got[i], expected[i]))
                << "tensor " << i << " step " << number << ": " << got[i].cpu().ne(expected[i]).sum().item<int64_t>()
                << " differ";
    }
    EXPECT_TRUE(sentinels_hold(on_gpu));
}

TEST_F(OptimizerGpuTest, EqualsBitsandbytesArithmetic) {
    const formats::SafetensorsFile file(test::golden("optimizer/adamw8bit.safetensors"));
    const at::Tensor gradients = golden::tensor(file, "gradients").to(at::kFloat);
    AdamwState state = make_state(std::vector<uint8_t>(16, block_decays | block_8bit), gpu->device());
    state.params_P.copy_(golden::tensor(file, "initial"));
    const AdamwSettings settings;
    StepState step(*gpu);
    for (uint32_t number = 1; number <= 20; ++number) {
        state.grads_P.copy_(gradients[number - 1]);
        set_step_fp32(step, settings, 1e-3, number);
        ops::adamw_step(*gpu, state, settings);
    }
    const at::Tensor order = state.slot_b.to(at::kLong);
    const auto by_block = [&](const at::Tensor& slots) {
        return slots.view({-1, 256}).index_select(0, order).view({-1});
    };
    EXPECT_TRUE(same_bits(by_block(state.m8), golden::tensor(file, "cuda_formula.step20.codes1")));
    EXPECT_TRUE(same_bits(by_block(state.v8), golden::tensor(file, "cuda_formula.step20.codes2")));
    EXPECT_TRUE(same_bits(state.params_P, golden::tensor(file, "cuda_formula.step20.parameters")));
}

TEST_F(OptimizerGpuTest, ASkippedStepTouchesNoBit) {
    AdamwState state = make_state({block_8bit, block_decays, block_8bit | block_decays}, gpu->device());
    state.params_P.copy_(at::randn({768}, generator));
    state.grads_P.copy_(at::randn({768}, generator));
    const AdamwSettings settings;
    StepState step(*gpu);
    set_step(step, settings, 1e-2, 1);
    ops::adamw_step(*gpu, state, settings);
    state.grads_P[5] = std::numeric_limits<float>::infinity();
    const AdamwState before = copy_of(state, at::kCPU);
    ops::gradient_norm(*gpu, state.grads_P,
                       at::empty({ops::gradient_norm_scratch(768)}, at::device(gpu->device()).dtype(at::kByte)));
    ops::adamw_step(*gpu, state, settings);
    step.load();
    EXPECT_EQ(step.outcome.skipped, 1U);
    const std::vector<at::Tensor> now = all_tensors(state), then = all_tensors(before);
    for (std::size_t i = 0; i < now.size(); ++i) EXPECT_TRUE(same_bits(now[i], then[i])) << i;
}

TEST_F(OptimizerGpuTest, ZeroesGradientsAlsoAfterASkippedStep) {
    expect_gradients_are_zeroed(*gpu, generator);
}

TEST_F(OptimizerGpuTest, NormEqualsTheCpu) {
    StepState cpu_step(cpu), gpu_step(*gpu);
    for (const int64_t elements : {0, 4, 256, 16384, 16388, 1000448}) {
        const at::Tensor gradient = at::randn({elements}, generator) * 3;
        const int64_t bytes = ops::gradient_norm_scratch(elements);
        at::Tensor scratch = at::full({bytes + 8}, 99, at::device(gpu->device()).dtype(at::kByte));
        for (StepState* step : {&cpu_step, &gpu_step}) {
            step->scalars.loss_scale = 128;
            step->scalars.max_grad_norm = 2;
            step->store();
        }
        ops::gradient_norm(cpu, gradient, at::empty({bytes + 8}, at::kByte));
        ops::gradient_norm(*gpu, gradient.to(gpu->device()), scratch);
        cpu_step.load();
        gpu_step.load();
        EXPECT_NEAR(gpu_step.outcome.grad_norm, cpu_step.outcome.grad_norm, 1e-6 * cpu_step.outcome.grad_norm)
            << elements;
        EXPECT_NEAR(gpu_step.outcome.clip, cpu_step.outcome.clip, 1e-6 * cpu_step.outcome.clip) << elements;
        EXPECT_EQ(gpu_step.outcome.skipped, 0U);
        EXPECT_TRUE(scratch.slice(0, bytes).eq(99).all().item<bool>());
        const float first = gpu_step.outcome.grad_norm;
        ops::gradient_norm(*gpu, gradient.to(gpu->device()), scratch);
        gpu_step.load();
        EXPECT_EQ(gpu_step.outcome.grad_norm, first) << "the same bits again";
    }
}

TEST_F(OptimizerGpuTest, NormSkipsOnWhatIsNotFiniteOrABadSite) {
    StepState step(*gpu);
    const auto floats = at::device(gpu->device()).dtype(at::kFloat);
    at::Tensor scratch = at::empty({64}, floats);
    at::Tensor gradient = at::ones({1024}, floats);
    step.outcome.first_bad_site = 6;
    step.store();
    ops::gradient_norm(*gpu, gradient, scratch);
    step.load();
    EXPECT_EQ(step.outcome.skipped, 1U);
    EXPECT_EQ(step.outcome.first_bad_site, 6U);
    step.outcome.first_bad_site = spec::all_finite;
    step.store();
    gradient[1023] = std::numeric_limits<float>::quiet_NaN();
    ops::gradient_norm(*gpu, gradient, scratch);
    step.load();
    EXPECT_EQ(step.outcome.skipped, 1U);
    EXPECT_EQ(step.outcome.clip, 0.0F);
}

/// Microseconds a call of f on the context's stream.
template <class F>
double time_of(Context& ctx, F f) {
    auto stream = static_cast<cudaStream_t>(ctx.stream());
    cudaEvent_t begin = nullptr, end = nullptr;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    for (int i = 0; i < 5; ++i) f();
    constexpr int calls = 20;
    cudaEventRecord(begin, stream);
    for (int i = 0; i < calls; ++i) f();
    cudaEventRecord(end, stream);
    cudaEventSynchronize(end);
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, begin, end);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return 1e3 * milliseconds / calls;
}

TEST_F(OptimizerGpuTest, DISABLED_Speed) {
    constexpr int64_t blocks = 42'000'000 / 256;
    constexpr double elements = 256.0 * blocks;
    for (const uint8_t flag : {static_cast<uint8_t>(block_8bit | block_decays), static_cast<uint8_t>(block_decays)}) {
        AdamwState state = make_state(std::vector<uint8_t>(blocks, flag), gpu->device());
        state.params_P.normal_();
        state.grads_P.normal_();
        const AdamwSettings settings;
        StepState step(*gpu);
        set_step(step, settings, 1e-4, 1);
        const double us = time_of(*gpu, [&] { ops::adamw_step(*gpu, state, settings); });
        const bool is_8bit = (flag & block_8bit) != 0;
        std::printf("adamw %s, %.0f M parameters: %7.1f us %7.0f GB/s\n", is_8bit ? "8-bit " : "32-bit",
                    elements * 1e-6, us, elements * (is_8bit ? 16 : 28) / us * 1e-3);
        if (!is_8bit) continue;
        at::Tensor scratch =
            at::empty({ops::gradient_norm_scratch(state.grads_P.numel())}, at::device(gpu->device()).dtype(at::kByte));
        const double norm_us = time_of(*gpu, [&] { ops::gradient_norm(*gpu, state.grads_P, scratch); });
        std::printf("gradient norm, %.0f M parameters: %7.1f us %7.0f GB/s\n", elements * 1e-6, norm_us,
                    elements * 4 / norm_us * 1e-3);
    }
}

}  // namespace
}  // namespace unsloth
