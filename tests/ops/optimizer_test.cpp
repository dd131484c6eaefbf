// AdamW and the gradient norm on the CPU: against torch and bitsandbytes' arithmetic, and at the edges.
#include "unsloth/ops/optimizer.h"

#include <gtest/gtest.h>

#include <limits>

#include "ops/optimizer_support.h"

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

struct TorchCase {
    const char* name;
    double learning_rate, beta1, beta2, eps, weight_decay, bound;
};

TEST_F(OptimizerTest, EqualsTorchAdamW) {
    const formats::SafetensorsFile file(test::golden("optimizer/adamw.safetensors"));
    const std::vector<TorchCase> cases = {{"case0.", 1e-3, 0.9, 0.999, 1e-8, 0.01, 2.5e-5},
                                          {"case1.", 3e-3, 0.9, 0.95, 1e-6, 0.1, 1.4e-5},
                                          {"case2.", 5e-4, 0.85, 0.99, 1e-8, 0.0, 9.4e-6}};
    const std::vector<uint32_t> checked = {1, 2, 5, 10, 20};
    for (const TorchCase& c : cases) {
        SCOPED_TRACE(c.name);
        const std::string prefix = c.name;
        const at::Tensor gradients = golden::tensor(file, prefix + "gradients").to(at::kFloat);
        const at::Tensor expected = golden::tensor(file, prefix + "parameters_after_steps_1_2_5_10_20");
        AdamwState state = make_state(std::vector<uint8_t>(4, block_decays), at::kCPU);
        state.params_P.slice(0, 0, 1000).copy_(golden::tensor(file, prefix + "initial"));
        const AdamwSettings settings{c.beta1, c.beta2, c.eps, c.weight_decay};
        StepState step(ctx);
        std::size_t row = 0;
        for (uint32_t number = 1; number <= 20; ++number) {
            state.grads_P.slice(0, 0, 1000).copy_(gradients[number - 1]);
            set_step(step, settings, c.learning_rate, number);
            ops::adamw_step(ctx, state, settings);
            if (number != checked[row]) continue;
            const at::Tensor difference =
                (state.params_P.slice(0, 0, 1000) - expected[static_cast<int64_t>(row++)]).abs();
            EXPECT_LE(difference.max().item<float>(), c.bound) << number;
        }
        EXPECT_EQ(row, checked.size());
        at::Tensor m = at::empty({1024}, at::kFloat), v = at::empty({1024}, at::kFloat);
        for (int64_t block = 0; block < 4; ++block) {
            const int64_t slot = state.slot_b[block].item<int>();
            m.slice(0, block * 256, block * 256 + 256).copy_(state.m32.slice(0, slot * 256, slot * 256 + 256));
            v.slice(0, block * 256, block * 256 + 256).copy_(state.v32.slice(0, slot * 256, slot * 256 + 256));
        }
        const at::Tensor expected_m =
            golden::tensor(file, prefix + "exp_avg");  // sums of both signs: relative to the largest
        EXPECT_LE((m.slice(0, 0, 1000) - expected_m).abs().max().item<float>(),
                  1e-6 * expected_m.abs().max().item<float>());
        EXPECT_TRUE(at::allclose(v.slice(0, 0, 1000), golden::tensor(file, prefix + "exp_avg_sq"), 1e-5, 1e-12));
        EXPECT_TRUE(state.params_P.slice(0, 1000).eq(0).all().item<bool>()) << "padding stays zero";
        EXPECT_TRUE(sentinels_hold(state));
    }
}

/// All slots of the 8-bit moments in the order of blocks.
at::Tensor by_block(const AdamwState& state, const at::Tensor& slots) {
    const int64_t width = slots.numel() / state.absmax_m8.numel();
    return slots.view({-1, width}).index_select(0, state.slot_b.to(at::kLong)).view({-1});
}

/// 20 steps of the 8-bit golden case; `fp32_corrections` gives equal bits.
void follow_bitsandbytes(Context& ctx, bool fp32_corrections, double parameter_bound) {
    const formats::SafetensorsFile file(test::golden("optimizer/adamw8bit.safetensors"));
    const at::Tensor gradients = golden::tensor(file, "gradients").to(at::kFloat);
    AdamwState state = make_state(std::vector<uint8_t>(16, block_decays | block_8bit), at::kCPU);
    state.params_P.copy_(golden::tensor(file, "initial"));
    const AdamwSettings settings;
    StepState step(ctx);
    int compared = 0;
    for (uint32_t number = 1; number <= 20; ++number) {
        state.grads_P.copy_(gradients[number - 1]);
        (fp32_corrections ? set_step_fp32 : set_step)(step, settings, 1e-3, number);
        ops::adamw_step(ctx, state, settings);
        const std::string prefix = cat("cuda_formula.step", number, ".");
        if (file.find(prefix + "codes1") == nullptr) continue;
        SCOPED_TRACE(prefix);
        ++compared;
        EXPECT_TRUE(same_bits(by_block(state, state.m8), golden::tensor(file, prefix + "codes1")));
        EXPECT_TRUE(same_bits(by_block(state, state.v8), golden::tensor(file, prefix + "codes2")));
        EXPECT_TRUE(same_bits(by_block(state, state.absmax_m8), golden::tensor(file, prefix + "absmax1")));
        EXPECT_TRUE(same_bits(by_block(state, state.absmax_v8), golden::tensor(file, prefix + "absmax2")));
        EXPECT_LE((state.params_P - golden::tensor(file, prefix + "parameters")).abs().max().item<double>(),
                  parameter_bound);
    }
    EXPECT_EQ(compared, 4);
    EXPECT_TRUE(sentinels_hold(state));
}

TEST_F(OptimizerTest, EqualsBitsandbytesArithmeticBitForBit) {
    follow_bitsandbytes(ctx, true, 0.0);
}

TEST_F(OptimizerTest, ExactBiasCorrectionsKeepTheCodes) {
    follow_bitsandbytes(ctx, false, 1e-6);
}

/// An element whose v rounds to code 0 beside m, and whose next gradients vanish, must not jump.
TEST_F(OptimizerTest, GuardsTheSecondMomentThatRoundedToZero) {
    for (const float next : {0.0F, 1e-12F, -1e-9F}) {
        AdamwState state = make_state({block_8bit}, at::kCPU);
        state.grads_P[0] = 1.0F;
        state.grads_P[1] = 3e-4F;  // v / absmax = 9e-8: below half of the map's first entry, 1.6e-7
        const AdamwSettings settings;
        StepState step(ctx);
        set_step(step, settings, 1e-3, 1);
        ops::adamw_step(ctx, state, settings);
        ASSERT_EQ(state.v8[1].item<int>(), 0);
        ASSERT_NE(state.m8[1].item<int>(), 127);
        for (uint32_t number = 2; number < 12; ++number) {
            const float before = state.params_P[1].item<float>();
            state.grads_P[1] = next;
            set_step(step, settings, 1e-3, number);
            ops::adamw_step(ctx, state, settings);
            EXPECT_LE(std::abs(state.params_P[1].item<float>() - before), 3e-3) << next << " step " << number;
        }
    }
}

TEST_F(OptimizerTest, BlocksWithoutGradientStayFinite) {
    AdamwState state = make_state({block_8bit, block_8bit | block_decays, 0, block_decays}, at::kCPU);
    state.params_P.fill_(1);
    const AdamwSettings settings;
    StepState step(ctx);
    for (uint32_t number = 1; number <= 3; ++number) {
        set_step(step, settings, 1e-3, number);
        ops::adamw_step(ctx, state, settings);
    }
    const float decayed = 0.99997F;  // (1 - 1e-5)^3
    const std::vector<float> expected = {1, decayed, 1, decayed};
    for (int64_t block = 0; block < 4; ++block) {
        const at::Tensor p = state.params_P.slice(0, block * 256, block * 256 + 256);
        EXPECT_NEAR(p.min().item<float>(), expected[static_cast<std::size_t>(block)], 2e-7);
        EXPECT_NEAR(p.max().item<float>(), expected[static_cast<std::size_t>(block)], 2e-7);
    }
    EXPECT_EQ(state.absmax_m8.slice(0, 0, -1).abs().sum().item<float>(), 0);
}

TEST_F(OptimizerTest, MixedBlocksAreIndependent) {
    const std::vector<uint8_t> flags = {block_8bit, block_decays, 0, block_8bit | block_decays, 0, block_8bit};
    AdamwState mixed = make_state(flags, at::kCPU);
    mixed.params_P.copy_(at::randn({6 * 256}, generator));
    std::vector<AdamwState> alone;
    for (std::size_t block = 0; block < flags.size(); ++block) {
        alone.push_back(make_state({flags[block]}, at::kCPU));
        alone[block].params_P.copy_(
            mixed.params_P.slice(0, static_cast<int64_t>(block) * 256, static_cast<int64_t>(block) * 256 + 256));
    }
    const AdamwSettings settings{.weight_decay = 0.5};
    StepState step(ctx);
    for (uint32_t number = 1; number <= 4; ++number) {
        mixed.grads_P.copy_(at::randn({6 * 256}, generator));
        set_step(step, settings, 1e-2, number);
        ops::adamw_step(ctx, mixed, settings);
        for (std::size_t block = 0; block < flags.size(); ++block) {
            const auto begin = static_cast<int64_t>(block) * 256;
            alone[block].grads_P.copy_(mixed.grads_P.slice(0, begin, begin + 256));
            ops::adamw_step(ctx, alone[block], settings);
            EXPECT_TRUE(same_bits(alone[block].params_P, mixed.params_P.slice(0, begin, begin + 256))) << block;
        }
    }
    EXPECT_TRUE(sentinels_hold(mixed));
}

// LoRA+: a block of group g moves as one alone at g's multiple of the learning rate, decay included.
TEST_F(OptimizerTest, EachGroupOfBlocksHasItsLearningRate) {
    const std::vector<uint8_t> kinds = {0, block_decays, block_8bit, block_8bit | block_decays};
    const AdamwSettings settings{.weight_decay = 0.5, .rate_factors = {1, 16, 0.25, 0}};
    std::vector<uint8_t> flags;
    for (int group = 0; group < ops::rate_groups; ++group)
        for (const uint8_t kind : kinds) flags.push_back(static_cast<uint8_t>(kind | group << ops::block_rate_shift));
    AdamwState grouped = make_state(flags, at::kCPU);
    const auto elements = static_cast<int64_t>(flags.size()) * 256;
    grouped.params_P.copy_(at::randn({elements}, generator));
    const at::Tensor start = grouped.params_P.clone();
    StepState step(ctx);
    std::vector<AdamwState> alone;
    for (std::size_t block = 0; block < flags.size(); ++block) {
        alone.push_back(make_state({kinds[block % kinds.size()]}, at::kCPU));
        alone[block].params_P.copy_(start.slice(0, static_cast<int64_t>(block) * 256).slice(0, 0, 256));
    }
    constexpr double rate = 0x1p-7;  // its multiples are exact
    for (uint32_t number = 1; number <= 3; ++number) {
        grouped.grads_P.copy_(at::randn({elements}, generator));
        set_step(step, settings, rate, number);
        ops::adamw_step(ctx, grouped, settings);
        for (std::size_t block = 0; block < flags.size(); ++block) {
            const auto begin = static_cast<int64_t>(block) * 256;
            alone[block].grads_P.copy_(grouped.grads_P.slice(0, begin, begin + 256));
            set_step(step, settings, rate * settings.rate_factors[block / kinds.size()], number);
            ops::adamw_step(ctx, alone[block], {.weight_decay = 0.5});
            EXPECT_TRUE(same_bits(alone[block].params_P, grouped.params_P.slice(0, begin, begin + 256))) << block;
        }
    }
    EXPECT_TRUE(same_bits(grouped.params_P.slice(0, 12 * 256), start.slice(0, 12 * 256))) << "a rate of 0";
    EXPECT_TRUE(sentinels_hold(grouped));
}

TEST_F(OptimizerTest, ClipMultipliesGradients) {
    const std::vector<uint8_t> flags = {block_8bit, block_decays};
    AdamwState clipped = make_state(flags, at::kCPU), scaled = make_state(flags, at::kCPU);
    const at::Tensor gradient = at::randn({512}, generator);
    clipped.grads_P.copy_(gradient);
    scaled.grads_P.copy_(gradient * 0.125);
    const AdamwSettings settings;
    StepState step(ctx);
    step.outcome.clip = 0.125F;
    set_step(step, settings, 1e-2, 1);
    ops::adamw_step(ctx, clipped, settings);
    EXPECT_TRUE(same_bits(clipped.grads_P, gradient));
    step.outcome.clip = 1;
    step.store();
    ops::adamw_step(ctx, scaled, settings);
    EXPECT_TRUE(same_bits(clipped.params_P, scaled.params_P));
    EXPECT_TRUE(same_bits(clipped.m8, scaled.m8));
    EXPECT_TRUE(same_bits(clipped.m32, scaled.m32));
    EXPECT_GT(clipped.params_P.abs().max().item<float>(), 1e-3);
}

TEST_F(OptimizerTest, ASkippedStepTouchesNoBit) {
    AdamwState state = make_state({block_8bit, block_decays, block_8bit | block_decays}, at::kCPU);
    state.params_P.copy_(at::randn({768}, generator));
    state.grads_P.copy_(at::randn({768}, generator));
    const AdamwSettings settings;
    StepState step(ctx);
    set_step(step, settings, 1e-2, 1);
    ops::adamw_step(ctx, state, settings);
    const AdamwState before = copy_of(state, at::kCPU);
    state.grads_P[5] = std::numeric_limits<float>::quiet_NaN();
    before.grads_P[5] = std::numeric_limits<float>::quiet_NaN();
    ops::gradient_norm(ctx, state.grads_P, at::empty({ops::gradient_norm_scratch(768)}, at::kByte));
    ASSERT_EQ(ctx.outcome->skipped, 1U);
    ops::adamw_step(ctx, state, settings);
    const std::vector<at::Tensor> now = all_tensors(state), then = all_tensors(before);
    for (std::size_t i = 0; i < now.size(); ++i) EXPECT_TRUE(same_bits(now[i], then[i])) << i;
}

TEST_F(OptimizerTest, ZeroesGradientsAlsoAfterASkippedStep) {
    expect_gradients_are_zeroed(ctx, generator);
}

TEST_F(OptimizerTest, NormClipAndLossScale) {
    StepState step(ctx);
    for (const int64_t elements : {0, 4, 256, 16384, 16388, 100096}) {
        const at::Tensor gradient = at::randn({elements}, generator) * 3;
        const double norm = gradient.to(at::kDouble).norm().item<double>();
        const int64_t bytes = ops::gradient_norm_scratch(elements);
        at::Tensor scratch = at::full({bytes + 8}, 99, at::kByte);
        for (const double loss_scale : {1.0, 1024.0}) {
            for (const double maximum : {0.0, 1.0, 1e9}) {
                SCOPED_TRACE(cat(elements, " elements, loss scale ", loss_scale, ", maximum ", maximum));
                step.scalars.loss_scale = static_cast<float>(loss_scale);
                step.scalars.max_grad_norm = static_cast<float>(maximum);
                step.store();
                ops::gradient_norm(ctx, gradient, scratch);
                step.load();
                EXPECT_NEAR(step.outcome.grad_norm, norm / loss_scale, 1e-6 * norm / loss_scale);
                const double clip = maximum > 0 ? std::min(1.0, maximum / (norm / loss_scale + 1e-6)) : 1.0;
                EXPECT_NEAR(step.outcome.clip, clip / loss_scale, 1e-6 * clip / loss_scale);
                EXPECT_EQ(step.outcome.skipped, 0U);
                EXPECT_TRUE(scratch.slice(0, bytes).eq(99).all().item<bool>());
            }
        }
    }
}

TEST_F(OptimizerTest, NotFiniteOrABadSiteSkips) {
    StepState step(ctx);
    at::Tensor scratch = at::empty({ops::gradient_norm_scratch(1024)}, at::kByte);
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e38F}) {
        at::Tensor gradient = at::full({1024}, bad == 1e38F ? bad : 1.0F);
        gradient[1000] = bad;
        step.store();
        ops::gradient_norm(ctx, gradient, scratch);
        step.load();
        EXPECT_EQ(step.outcome.skipped, 1U) << bad;  // 1e38 each: the norm itself leaves fp32
        EXPECT_EQ(step.outcome.clip, 0.0F);
        EXPECT_EQ(step.outcome.first_bad_site, spec::bad_gradient_norm)
            << "a step behind this one must be skipped, too";
        step.outcome.first_bad_site = spec::all_finite;
    }
    step.outcome.first_bad_site = 6;
    step.store();
    ops::gradient_norm(ctx, at::ones({1024}), scratch);
    step.load();
    EXPECT_EQ(step.outcome.skipped, 1U);
    EXPECT_EQ(step.outcome.first_bad_site, 6U);
    EXPECT_EQ(step.outcome.grad_norm, 32.0F);
    step.outcome.first_bad_site = spec::all_finite;
    step.store();
    ops::gradient_norm(ctx, at::ones({1024}), scratch);  // skipped of the step before is no memory
    step.load();
    EXPECT_EQ(step.outcome.skipped, 0U);
}

TEST_F(OptimizerTest, TheNormOfPartsHasTheBitsOfTheWhole) {
    constexpr int64_t chunk = ops::gradient_norm_chunk, elements = 3 * chunk + 256, padded = 6 * chunk;
    StepState step(ctx);
    set_step(step, {}, 1e-2, 1);
    at::Tensor gradients = at::zeros({padded});
    gradients.narrow(0, 0, elements).copy_(at::randn({elements}, generator));
    ops::gradient_norm(ctx, gradients.narrow(0, 0, elements),
                       at::empty({ops::gradient_norm_scratch(elements)}, at::kByte));
    const float whole = ctx.outcome->grad_norm;
    ctx.outcome->grad_norm = 0;
    const at::Tensor sums = at::full({padded / chunk}, -1, at::kDouble);
    for (const int64_t rank : {2, 0, 1})
        ops::gradient_squares(ctx, gradients.narrow(0, rank * 2 * chunk, 2 * chunk), sums.narrow(0, rank * 2, 2));
    ops::finish_gradient_norm(ctx, sums);
    EXPECT_GT(whole, 0);
    EXPECT_EQ(ctx.outcome->grad_norm, whole);
    EXPECT_THROW(ops::gradient_squares(ctx, gradients, sums.narrow(0, 0, 5)), CheckError);
}

TEST_F(OptimizerTest, RefusesWhatDoesNotFit) {
    AdamwState state = make_state({block_8bit, 0}, at::kCPU);
    EXPECT_THROW(ops::adamw_step(ctx, state, {}), CheckError) << "no scalars";
    StepState step(ctx);
    const AdamwState good = copy_of(state, at::kCPU);
    ops::adamw_step(ctx, good, {});
    AdamwState bad = good;
    bad.grads_P = at::zeros({256});
    EXPECT_THROW(ops::adamw_step(ctx, bad, {}), CheckError);
    bad = good;
    bad.v8 = bad.v8.to(at::kChar);
    EXPECT_THROW(ops::adamw_step(ctx, bad, {}), CheckError);
    bad = good;
    bad.m8 = at::Tensor();
    bad.m32 = at::Tensor();
    EXPECT_THROW(ops::adamw_step(ctx, bad, {}), CheckError) << "no moments";
    EXPECT_THROW(ops::gradient_norm(ctx, at::zeros({1024}), at::empty({4}, at::kByte)), CheckError);
    EXPECT_THROW(ops::gradient_norm(ctx, at::zeros({1023}), at::empty({64}, at::kByte)), CheckError);
}

}  // namespace
}  // namespace unsloth
