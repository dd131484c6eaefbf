// Which steps are spikes: limits by hand, and the mark on the device's outcome.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "unsloth/spec/step_scalars.h"
#include "unsloth/train/spikes.h"

namespace unsloth::train {
namespace {

constexpr float infinite = std::numeric_limits<float>::infinity();

/// Steps 1 to `count`; losses alternate between 1 and 3, norms are 5.
SpikeWindow filled(int64_t count) {
    SpikeWindow window(6);
    for (int64_t step = 1; step <= count; ++step) window.observe({step, step % 2 == 0 ? 3.0 : 1.0, 5.0});
    return window;
}

TEST(Spikes, LimitsAreTheMeanAndSixDeviations) {
    EXPECT_EQ(filled(31).limits(32).loss, infinite);
    EXPECT_LT(filled(32).limits(33).loss, infinite);
    const SpikeLimits limits = filled(33).limits(34);
    EXPECT_FLOAT_EQ(limits.loss, static_cast<float>(2 + 6 * std::sqrt(32.0 / 31)));
    EXPECT_FLOAT_EQ(limits.grad_norm, 5);
}

TEST(Spikes, TheStepRightBeforeHasNoSayOnAnyDevice) {
    SpikeWindow early = filled(40), late = filled(40);
    late.observe({41, 1e6, 1e6});
    EXPECT_EQ(early.limits(42).loss, late.limits(42).loss);
    EXPECT_LT(early.limits(43).loss, late.limits(43).loss);
}

TEST(Spikes, OldStepsAndThoseThatAreNotFiniteDoNotCount) {
    SpikeWindow window(6);
    window.observe({1, 1e9, 1e9});
    for (int64_t step = 2; step <= 129; ++step) window.observe({step, 2, 5});
    window.observe({130, NAN, infinite});
    EXPECT_GT(window.limits(130).loss, 1e6);  // step 1 is one of the 128 before step 129
    EXPECT_FLOAT_EQ(window.limits(131).loss, 2);
    EXPECT_EQ(window.measures().size(), 129U);
}

/// A level that stays is no spike for long.
TEST(Spikes, ANewLevelIsTakenAfterAFewSteps) {
    SpikeWindow window(6);
    int64_t step = 1;
    for (; step <= 200; ++step) window.observe({step, 2 + 0.1 * static_cast<double>(step % 3), 5});
    int skipped = 0;
    for (int i = 0; i < 20; ++i, ++step) {
        skipped += window.limits(step).loss < 10 ? 1 : 0;
        window.observe({step, 10, 5});
    }
    EXPECT_GE(skipped, 3);
    EXPECT_LE(skipped, 7);
}

spec::StepOutcome marked(spec::StepOutcome outcome, const SpikeLimits& limits) {
    const ops::Context ctx(at::kCPU);
    SpikeGuard guard(ctx);
    const at::Tensor bytes = at::empty({static_cast<int64_t>(sizeof outcome)}, at::kByte);
    std::memcpy(bytes.mutable_data_ptr(), &outcome, sizeof outcome);
    guard.issue(guard.make_host(), limits, bytes);
    std::memcpy(&outcome, bytes.const_data_ptr(), sizeof outcome);
    return outcome;
}

TEST(Spikes, TheOutcomeIsMarked) {
    const spec::StepOutcome good{2, 5, 1, 0, spec::all_finite};
    EXPECT_EQ(marked(good, {}).skipped, 0U);
    EXPECT_EQ(marked(good, {2, 5}).skipped, 0U);
    EXPECT_EQ(marked(good, {1.9F, 5}).skipped, skipped_spike);
    EXPECT_EQ(marked(good, {2, 4.9F}).skipped, skipped_spike);
    EXPECT_EQ(marked(good, {2, 4.9F}).grad_norm, 5.0F);
    const spec::StepOutcome bad{NAN, infinite, 0, 1, 7};  // stays what it is
    EXPECT_EQ(marked(bad, {1, 1}).skipped, 1U);
}

}  // namespace
}  // namespace unsloth::train
