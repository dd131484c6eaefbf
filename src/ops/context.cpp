#include "unsloth/ops/context.h"

#ifdef UNSLOTH_CUDA
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#endif

#include "ops/cuda_handles.h"
#include "unsloth/core/error.h"
#include "unsloth/ops/kernel_table.h"

namespace unsloth::ops {

namespace {

/// A CUDA device always has an index, so that tensors' devices compare equal with the context's.
at::Device resolve(at::Device device) {
    if (!device.is_cuda()) {
        UNSLOTH_CHECK(device.is_cpu(), "operators run on the CPU and on CUDA, not on ", device.str());
        return device;
    }
#ifdef UNSLOTH_CUDA
    return device.has_index() ? device : at::Device(at::kCUDA, c10::cuda::current_device());
#else
    throw Error("device.no-cuda",
                cat("device ", device.str(), " was asked for, but this program was built without CUDA"),
                "Use the CPU, or build with -DUNSLOTH_CUDA=ON.");
#endif
}

}  // namespace

Context::Context(at::Device device, std::shared_ptr<const spec::KernelTable> table)
    : kernels(std::move(table)), device_(resolve(device)) {
    if (!kernels) kernels = built_in_kernels(device_);
    if (is_cuda()) cuda_ = std::make_unique<CudaHandles>();
}

Context::~Context() = default;

void* Context::stream() const {
#ifdef UNSLOTH_CUDA
    if (is_cuda()) return c10::cuda::getCurrentCUDAStream(device_.index()).stream();
#endif
    return nullptr;
}

CudaHandles& Context::cuda() const {
    UNSLOTH_CHECK(cuda_ != nullptr, "library handles exist on CUDA contexts only");
    return *cuda_;
}

}  // namespace unsloth::ops
