// Tensors of more than 2^31 elements: their last rows must come out as if they were alone.
#include <ATen/cuda/CUDAContext.h>

#include "gpu/gpu_testing.h"
#include "unsloth/ops/cross_entropy.h"
#include "unsloth/ops/norm.h"
#include "unsloth/ops/rope.h"
#include "unsloth/ops/rows.h"
#include "unsloth/ops/swiglu.h"

namespace unsloth {
namespace {

class LargeTensorsGpu : public testing::GpuTest {
  protected:
    static constexpr int64_t tail = 3;
    static constexpr int64_t gibibyte = int64_t{1} << 30;

    void SetUp() override {
        GpuTest::SetUp();
        if (IsSkipped()) return;
        if (static_cast<int64_t>(at::cuda::getCurrentDeviceProperties()->totalGlobalMem) < 30 * gibibyte) {
            GTEST_SKIP() << "needs a GPU of 30 GiB";
        }
        at::manual_seed(std::random_device{}());
    }

    static at::Tensor bf16(at::IntArrayRef shape) {
        return at::empty(shape, at::TensorOptions(at::kBFloat16).device(at::kCUDA));
    }
    static at::Tensor fp32(at::IntArrayRef shape) {
        return at::zeros(shape, at::TensorOptions(at::kFloat).device(at::kCUDA));
    }
    /// Zeros, and random last rows.
    static at::Tensor large(at::IntArrayRef shape) {
        const at::Tensor tensor = bf16(shape).zero_();
        EXPECT_GT(tensor.numel(), int64_t{1} << 31);
        last_rows(tensor).normal_();
        return tensor;
    }
    static at::Tensor last_rows(const at::Tensor& tensor) { return tensor.narrow(0, tensor.size(0) - tail, tail); }
};

TEST_F(LargeTensorsGpu, Swiglu) {
    ops::Context ctx(at::kCUDA);
    const at::Tensor gu = large({80000, 28672}), act = bf16({80000, 14336});
    const at::Tensor alone = last_rows(gu).clone(), alone_act = bf16({tail, 14336});
    ops::swiglu_forward(ctx, gu, act);
    ops::swiglu_forward(ctx, alone, alone_act);
    EXPECT_TRUE(at::equal(last_rows(act), alone_act));
    ops::swiglu_backward(ctx, act, gu);
    ops::swiglu_backward(ctx, alone_act, alone);
    EXPECT_TRUE(at::equal(last_rows(gu), alone));
    EXPECT_GT(alone.abs().max().item<float>(), 0);
}

TEST_F(LargeTensorsGpu, NormAndCopy) {
    ops::Context ctx(at::kCUDA);
    const at::Tensor x = large({540000, 4096}), y = bf16({540000, 4096}), rstd = fp32({540000}),
                     weight = bf16({4096}).fill_(1.5);
    const at::Tensor alone = last_rows(x).clone(), alone_y = bf16({tail, 4096}), alone_rstd = fp32({tail});
    ops::rms_norm_forward(ctx, x, weight, 1e-5, y, rstd);
    ops::rms_norm_forward(ctx, alone, weight, 1e-5, alone_y, alone_rstd);
    EXPECT_TRUE(at::equal(last_rows(y), alone_y));
    const at::Tensor dx = x.clone(), alone_dx = alone.clone();
    ops::rms_norm_backward(ctx, y, x, weight, rstd, dx, {});
    ops::rms_norm_backward(ctx, alone_y, alone, weight, alone_rstd, alone_dx, {});
    EXPECT_TRUE(at::equal(last_rows(dx), alone_dx));
    ops::copy_2d(ctx, dx, y, 0.5);
    EXPECT_TRUE(at::equal(last_rows(y), alone_dx * 0.5));
}

TEST_F(LargeTensorsGpu, Rope) {
    ops::Context ctx(at::kCUDA);
    const at::Tensor x = large({420000, 40, 128}), cos = fp32({420000, 64}).normal_(),
                     sin = fp32({420000, 64}).normal_();
    const at::Tensor alone = last_rows(x).clone(), before = alone.clone();
    ops::rope_apply(ctx, x, cos, sin, false);
    ops::rope_apply(ctx, alone, last_rows(cos).contiguous(), last_rows(sin).contiguous(), false);
    EXPECT_TRUE(at::equal(last_rows(x), alone));
    EXPECT_FALSE(at::equal(alone, before));
}

TEST_F(LargeTensorsGpu, CrossEntropy) {
    ops::Context ctx(at::kCUDA);
    const at::Tensor scalars = testing::bytes_on(testing::test_scalars(), ctx.device());
    ctx.scalars = static_cast<const spec::StepScalars*>(scalars.const_data_ptr());
    const at::Tensor logits = large({17000, 128256}), losses = fp32({17000}), alone_losses = fp32({tail});
    const at::Tensor targets = at::full({17000}, 128255, at::TensorOptions(at::kInt).device(at::kCUDA));
    const at::Tensor alone = last_rows(logits).clone();
    ops::cross_entropy(ctx, logits, targets, losses, true);
    ops::cross_entropy(ctx, alone, targets.narrow(0, 0, tail), alone_losses, true);
    EXPECT_TRUE(at::equal(last_rows(logits), alone));
    EXPECT_TRUE(at::equal(last_rows(losses), alone_losses));
    EXPECT_TRUE(alone_losses.isfinite().all().item<bool>());
}

}  // namespace
}  // namespace unsloth
