#include "unsloth/ops/copy_stream.h"

#ifdef UNSLOTH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <vector>

#include "kernels/common/launch.h"
#endif

#include "unsloth/core/error.h"

namespace unsloth::ops {

#ifdef UNSLOTH_CUDA
struct CopyStream::Cuda {
    explicit Cuda(int count) : marks(static_cast<std::size_t>(count)) {
        UNSLOTH_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        for (cudaEvent_t& event : marks) UNSLOTH_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        UNSLOTH_CUDA_CHECK(cudaEventCreateWithFlags(&computed, cudaEventDisableTiming));
    }
    ~Cuda() {
        cudaStreamSynchronize(stream);
        for (const cudaEvent_t event : marks) cudaEventDestroy(event);
        cudaEventDestroy(computed);
        cudaStreamDestroy(stream);
    }
    cudaStream_t stream = nullptr;
    cudaEvent_t computed = nullptr;
    std::vector<cudaEvent_t> marks;
};
#else
struct CopyStream::Cuda {};
#endif

CopyStream::CopyStream(Context& ctx, [[maybe_unused]] int marks) : ctx_(ctx) {
#ifdef UNSLOTH_CUDA
    if (ctx.is_cuda()) cuda_ = std::make_unique<Cuda>(marks);
#endif
}

CopyStream::~CopyStream() = default;

void CopyStream::wait_for_compute() {
#ifdef UNSLOTH_CUDA
    if (cuda_ == nullptr) return;
    UNSLOTH_CUDA_CHECK(cudaEventRecord(cuda_->computed, static_cast<cudaStream_t>(ctx_.stream())));
    UNSLOTH_CUDA_CHECK(cudaStreamWaitEvent(cuda_->stream, cuda_->computed, 0));
#endif
}

void CopyStream::copy(const at::Tensor& from, const at::Tensor& to) {
    UNSLOTH_CHECK(from.is_contiguous() && to.is_contiguous() && from.nbytes() == to.nbytes(), "copy of ", from.nbytes(),
                  " bytes to ", to.nbytes());
#ifdef UNSLOTH_CUDA
    if (cuda_ != nullptr) {
        UNSLOTH_CUDA_CHECK(
            cudaMemcpyAsync(to.data_ptr(), from.const_data_ptr(), from.nbytes(), cudaMemcpyDefault, cuda_->stream));
        return;
    }
#endif
    to.copy_(from);
}

void CopyStream::run(const std::function<void()>& work) {
#ifdef UNSLOTH_CUDA
    if (cuda_ != nullptr) {
        const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromExternal(cuda_->stream, ctx_.device().index()));
        return work();
    }
#endif
    work();
}

void CopyStream::mark([[maybe_unused]] int number) {
#ifdef UNSLOTH_CUDA
    if (cuda_ != nullptr)
        UNSLOTH_CUDA_CHECK(cudaEventRecord(cuda_->marks.at(static_cast<std::size_t>(number)), cuda_->stream));
#endif
}

void CopyStream::compute_waits([[maybe_unused]] int number) {
#ifdef UNSLOTH_CUDA
    if (cuda_ != nullptr)
        UNSLOTH_CUDA_CHECK(cudaStreamWaitEvent(static_cast<cudaStream_t>(ctx_.stream()),
                                               cuda_->marks.at(static_cast<std::size_t>(number)), 0));
#endif
}

void CopyStream::host_waits([[maybe_unused]] int number) {
#ifdef UNSLOTH_CUDA
    if (cuda_ != nullptr) UNSLOTH_CUDA_CHECK(cudaEventSynchronize(cuda_->marks.at(static_cast<std::size_t>(number))));
#endif
}

}  // namespace unsloth::ops
