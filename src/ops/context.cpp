#include "unsloth/ops/context.h"

#include "ops/cuda_handles.h"
#include "unsloth/core/error.h"

#if UNSLOTH_CUDA
#include <c10/cuda/CUDAStream.h>
#endif

namespace unsloth::ops {

Context::Context(at::Device device) : device_(device), cuda_(std::make_unique<CudaHandles>()) {}
Context::~Context() = default;

void* Context::stream() const {
#if UNSLOTH_CUDA
    if (is_cuda()) return c10::cuda::getCurrentCUDAStream(device_.index()).stream();
#endif
    return nullptr;
}

CudaHandles& Context::cuda() const { return *cuda_; }

}  // namespace unsloth::ops
