#include "unsloth/ops/milestone.h"

#ifdef UNSLOTH_CUDA
#include <cuda_runtime_api.h>

#include "kernels/common/launch.h"
#endif

namespace unsloth::ops {

#ifdef UNSLOTH_CUDA
struct Milestone::Event {
    Event() { UNSLOTH_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming)); }
    ~Event() { cudaEventDestroy(event); }
    cudaEvent_t event = nullptr;
};
#else
struct Milestone::Event {};
#endif

Milestone::Milestone(Context& ctx) : ctx_(&ctx) {
#ifdef UNSLOTH_CUDA
    if (ctx.is_cuda()) event_ = std::make_unique<Event>();
#endif
}

Milestone::~Milestone() = default;
Milestone::Milestone(Milestone&&) noexcept = default;
Milestone& Milestone::operator=(Milestone&&) noexcept = default;

void Milestone::record() {
#ifdef UNSLOTH_CUDA
    if (event_ == nullptr) return;
    const auto stream = static_cast<cudaStream_t>(ctx_->stream());
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    UNSLOTH_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
    // An ordinary record would only order the recording's own work; an external one is seen by waits outside of it.
    const unsigned flags = status == cudaStreamCaptureStatusActive ? cudaEventRecordExternal : cudaEventRecordDefault;
    UNSLOTH_CUDA_CHECK(cudaEventRecordWithFlags(event_->event, stream, flags));
#endif
}

void Milestone::wait() const {
#ifdef UNSLOTH_CUDA
    if (event_ != nullptr)
        UNSLOTH_CUDA_CHECK(cudaStreamWaitEvent(static_cast<cudaStream_t>(ctx_->stream()), event_->event, 0));
#endif
}

}  // namespace unsloth::ops
