#include <c10/cuda/CUDAGuard.h>

#include "gpu/gpu_testing.h"
#include "unsloth/core/error.h"
#include "unsloth/ops/rows.h"

namespace unsloth {
namespace {

using ContextGpu = testing::GpuTest;

TEST_F(ContextGpu, FollowsTheCurrentStream) {
    ops::Context ctx(at::kCUDA);
    EXPECT_TRUE(ctx.device().has_index());
    const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool();
    {
        const c10::cuda::CUDAStreamGuard guard(side);
        EXPECT_EQ(ctx.stream(), static_cast<void*>(side.stream()));
    }
    EXPECT_NE(ctx.stream(), static_cast<void*>(side.stream()));
}

TEST_F(ContextGpu, OperatorsWaitForEarlierWorkOfTheirStream) {
    ops::Context ctx(at::kCUDA);
    const at::TensorOptions on_gpu = at::TensorOptions(at::kFloat).device(at::kCUDA);
    const at::Tensor matrix = at::ones({4096, 4096}, on_gpu) / 4096, copy = at::zeros({4096, 4096}, on_gpu);
    c10::cuda::device_synchronize();
    const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool();
    const c10::cuda::CUDAStreamGuard guard(side);
    at::Tensor product = matrix;
    for (int i = 0; i < 20; ++i) product = at::mm(product, matrix);  // milliseconds of work
    ops::copy_2d(ctx, product, copy);
    side.synchronize();
    EXPECT_NEAR(copy.mean().item<float>(), 1.f / 4096, 1e-6);
}

TEST_F(ContextGpu, RefusesTensorsOfAnotherDevice) {
    ops::Context ctx(at::kCUDA);
    EXPECT_THROW(ops::zero_2d(ctx, at::ones({2, 2})), CheckError);
}

}  // namespace
}  // namespace unsloth
