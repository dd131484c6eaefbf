// A flat AdamW state for tests, on any device.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "ops/golden_files.h"
#include "unsloth/ops/optimizer.h"

namespace unsloth::optimizer_cases {

/// Flags a block; slots are handed out in reverse order, and one more slot of each kind than needed is a
/// sentinel.
inline ops::AdamwState make_state(const std::vector<uint8_t>& flags, at::Device device) {
    const auto blocks = static_cast<int64_t>(flags.size());
    int64_t slots8 = 0;
    for (const uint8_t flag : flags) slots8 += (flag & ops::block_8bit) != 0 ? 1 : 0;
    const int64_t slots32 = blocks - slots8;
    at::Tensor flags_b = at::empty({blocks}, at::kByte), slot_b = at::empty({blocks}, at::kInt);
    int32_t next8 = static_cast<int32_t>(slots8), next32 = static_cast<int32_t>(slots32);
    for (int64_t block = 0; block < blocks; ++block) {
        const uint8_t flag = flags[static_cast<std::size_t>(block)];
        flags_b.data_ptr<uint8_t>()[block] = flag;
        slot_b.data_ptr<int32_t>()[block] = (flag & ops::block_8bit) != 0 ? --next8 : --next32;
    }
    const auto floats = at::TensorOptions(device).dtype(at::kFloat), bytes = at::TensorOptions(device).dtype(at::kByte);
    ops::AdamwState state;
    state.params_P = at::zeros({blocks * 256}, floats);
    state.grads_P = at::zeros({blocks * 256}, floats);
    state.flags_b = flags_b.to(device);
    state.slot_b = slot_b.to(device);
    state.m32 = at::zeros({(slots32 + 1) * 256}, floats);
    state.v32 = at::zeros({(slots32 + 1) * 256}, floats);
    state.m8 = at::zeros({(slots8 + 1) * 256}, bytes);
    state.v8 = at::zeros({(slots8 + 1) * 256}, bytes);
    state.absmax_m8 = at::zeros({slots8 + 1}, floats);
    state.absmax_v8 = at::zeros({slots8 + 1}, floats);
    for (at::Tensor* moments : {&state.m32, &state.v32, &state.m8, &state.v8}) moments->slice(0, -256).fill_(77);
    state.absmax_m8[-1] = 77;
    state.absmax_v8[-1] = 77;
    state.maps = ops::dynamic_maps(device);
    return state;
}

inline std::vector<at::Tensor> all_tensors(const ops::AdamwState& s) {
    return {s.params_P, s.grads_P, s.flags_b, s.slot_b, s.m32, s.v32, s.m8, s.v8, s.absmax_m8, s.absmax_v8, s.maps};
}

inline ops::AdamwState copy_of(const ops::AdamwState& s, at::Device device) {
    const auto copy = [&](const at::Tensor& t) { return t.to(device, /*non_blocking=*/false, /*copy=*/true); };
    return {copy(s.params_P), copy(s.grads_P), copy(s.flags_b),   copy(s.slot_b),    copy(s.m32), copy(s.v32),
            copy(s.m8),       copy(s.v8),      copy(s.absmax_m8), copy(s.absmax_v8), copy(s.maps)};
}

inline bool sentinels_hold(const ops::AdamwState& s) {
    for (const at::Tensor& moments : {s.m32, s.v32, s.m8, s.v8})
        if (!moments.slice(0, -256).eq(77).all().item<bool>()) return false;
    return s.absmax_m8[-1].item<float>() == 77 && s.absmax_v8[-1].item<float>() == 77;
}

inline void set_step(golden::StepState& step, const ops::AdamwSettings& settings, double learning_rate,
                     uint32_t number) {
    step.scalars.step = number;
    step.scalars.learning_rate = static_cast<float>(learning_rate);
    step.scalars.bias_correction1 = ops::bias_correction(settings.beta1, number);
    step.scalars.bias_correction2 = ops::bias_correction(settings.beta2, number);
    step.store();
}

/// The same as bitsandbytes' kernel computes it, in fp32: needed for equal bits only.
inline void set_step_fp32(golden::StepState& step, const ops::AdamwSettings& settings, double learning_rate,
                          uint32_t number) {
    set_step(step, settings, learning_rate, number);
    const auto correction = [&](double beta) {
        return 1.0F - static_cast<float>(std::pow(static_cast<double>(static_cast<float>(beta)), number));
    };
    step.scalars.bias_correction1 = correction(settings.beta1);
    step.scalars.bias_correction2 = correction(settings.beta2);
    step.store();
}

/// `zero_gradients` changes nothing but the gradients, and clears them whether or not the update happens.
inline void expect_gradients_are_zeroed(ops::Context& ctx, at::Generator generator) {
    const std::vector<uint8_t> flags = {ops::block_8bit, ops::block_decays, ops::block_8bit | ops::block_decays, 0};
    ops::AdamwState zeroed = make_state(flags, ctx.device());
    zeroed.params_P.copy_(at::randn({1024}, generator));
    const ops::AdamwState kept = copy_of(zeroed, ctx.device());
    const ops::AdamwSettings settings;
    golden::StepState step(ctx);
    for (uint32_t number = 1; number <= 3; ++number) {
        const at::Tensor gradients = at::randn({1024}, generator);
        for (const ops::AdamwState* state : std::array<const ops::AdamwState*, 2>{&zeroed, &kept}) {
            state->grads_P.copy_(gradients);
            step.outcome.skipped = number == 2 ? 1 : 0;
            set_step(step, settings, 1e-2, number);
            ops::adamw_step(ctx, *state, settings, /*zero_gradients=*/state == &zeroed);
        }
        EXPECT_TRUE(golden::same_bits(zeroed.grads_P, at::zeros({1024}))) << number;
        EXPECT_TRUE(golden::same_bits(kept.grads_P, gradients)) << number;
        kept.grads_P.zero_();
        const std::vector<at::Tensor> got = all_tensors(zeroed), expected = all_tensors(kept);
        for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(golden::same_bits(got[i], expected[i])) << i;
    }
    EXPECT_TRUE(sentinels_hold(zeroed));
}

}  // namespace unsloth::optimizer_cases
