#include "unsloth/ops/event.h"

#ifdef UNSLOTH_CUDA
#include <cuda_runtime_api.h>

#include "kernels/common/launch.h"
#endif

namespace unsloth::ops {

#ifdef UNSLOTH_CUDA
struct Event::Handle {
    explicit Handle(Kind kind) {
        const unsigned flags = kind == Kind::timed ? cudaEventDefault : cudaEventDisableTiming;
        UNSLOTH_CUDA_CHECK(cudaEventCreateWithFlags(&event, flags));
    }
    ~Handle() { cudaEventDestroy(event); }
    cudaEvent_t event = nullptr;
};
#else
struct Event::Handle {};
#endif

Event::Event(Context& ctx, [[maybe_unused]] Kind kind) : ctx_(&ctx) {
#ifdef UNSLOTH_CUDA
    if (ctx.is_cuda()) handle_ = std::make_unique<Handle>(kind);
#endif
}

Event::~Event() = default;
Event::Event(Event&&) noexcept = default;
Event& Event::operator=(Event&&) noexcept = default;

void Event::record() {
#ifdef UNSLOTH_CUDA
    if (handle_ == nullptr) return;
    const auto stream = static_cast<cudaStream_t>(ctx_->stream());
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    UNSLOTH_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
    // An ordinary record would only order the recording's own work; an external one is seen by waits outside of it.
    const unsigned flags = status == cudaStreamCaptureStatusActive ? cudaEventRecordExternal : cudaEventRecordDefault;
    UNSLOTH_CUDA_CHECK(cudaEventRecordWithFlags(handle_->event, stream, flags));
#endif
}

void Event::wait() const {
#ifdef UNSLOTH_CUDA
    if (handle_ != nullptr)
        UNSLOTH_CUDA_CHECK(cudaStreamWaitEvent(static_cast<cudaStream_t>(ctx_->stream()), handle_->event, 0));
#endif
}

double Event::ms_since([[maybe_unused]] const Event& earlier) const {
    float ms = 0;
#ifdef UNSLOTH_CUDA
    if (handle_ != nullptr) UNSLOTH_CUDA_CHECK(cudaEventElapsedTime(&ms, earlier.handle_->event, handle_->event));
#endif
    return ms;
}

void Event::synchronize() const {
#ifdef UNSLOTH_CUDA
    if (handle_ != nullptr) UNSLOTH_CUDA_CHECK(cudaEventSynchronize(handle_->event));
#endif
}

}  // namespace unsloth::ops
