// Waits of other streams for work of a context's stream, issued as it comes and recorded.
#include <c10/cuda/CUDAGuard.h>

#include "gpu/gpu_testing.h"
#include "unsloth/ops/cuda_graph.h"
#include "unsloth/ops/event.h"

namespace unsloth {
namespace {

class EventGpu : public testing::GpuTest {
  protected:
    void SetUp() override {
        testing::GpuTest::SetUp();
        if (IsSkipped()) return;
        ctx.emplace(at::kCUDA);
        side = c10::cuda::getStreamFromPool();
        const at::TensorOptions on_gpu = at::TensorOptions(at::kFloat).device(at::kCUDA);
        value = at::zeros({1 << 20}, on_gpu);
        busy = at::zeros({1 << 28}, on_gpu);
        seen = at::zeros({1 << 20}, on_gpu);
        c10::cuda::device_synchronize();
    }
    /// Milliseconds of work, then the value, then as much again that nobody needs to wait for.
    void work(ops::Event& event, float x) {
        for (int i = 0; i < 20; ++i) busy.add_(1);
        value.fill_(x);
        event.record();
        for (int i = 0; i < 20; ++i) busy.add_(1);
    }
    float look(const ops::Event& event) {
        const c10::cuda::CUDAStreamGuard guard(*side);
        event.wait();
        seen.copy_(value);
        side->synchronize();
        return seen.min().cpu().item<float>();
    }
    std::optional<ops::Context> ctx;
    at::Tensor value, busy, seen;
    std::optional<c10::cuda::CUDAStream> side;
};

TEST_F(EventGpu, AnotherStreamWaitsForTheLastRecord) {
    ops::Event event(*ctx);
    EXPECT_EQ(look(event), 0);  // nothing to wait for yet
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
    for (const float x : {1.F, 2.F, 3.F}) {
        work(event, x);
        EXPECT_EQ(look(event), x);
        c10::cuda::device_synchronize();
    }
}

TEST_F(EventGpu, InAGraphEveryLaunchCounts) {
    ops::Event event(*ctx);
    const at::Tensor step = at::ones({1}, value.options());
    c10::cuda::device_synchronize();
    const ops::CudaGraph recorded = ops::CudaGraph::capture(*ctx, [&] {
        for (int i = 0; i < 20; ++i) busy.add_(1);
        value.add_(step);
        event.record();
        for (int i = 0; i < 20; ++i) busy.add_(1);
    });
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
    for (int issue = 1; issue <= 5; ++issue) {
        recorded.launch(*ctx);
        EXPECT_EQ(look(event), static_cast<float>(issue));
        // What stands behind the event still runs: the wait was not for all of it.
        EXPECT_FALSE(c10::cuda::getCurrentCUDAStream().query()) << "issue " << issue;
        c10::cuda::device_synchronize();
    }
}

}  // namespace
}  // namespace unsloth
