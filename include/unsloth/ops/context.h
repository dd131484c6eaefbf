// What every operator needs in addition to its tensors: the device, the stream, library handles, planned workspace, and
// the step's scalars where the device can read them.
#pragma once

#include <ATen/ATen.h>

#include <memory>

#include "unsloth/spec/step_scalars.h"

#ifndef _OPENMP
#error "operators, and what hands work to them, are compiled with OpenMP: without it at::parallel_for is a plain loop"
#endif

namespace unsloth::spec {
struct KernelTable;
}

namespace unsloth::ops {

class Profiler;
struct CudaHandles;  ///< cuBLASLt and cuDNN handles and their caches; src/ops/cuda_handles.h

/// One per device and thread of execution. Operators take it first; CUDA work goes to `stream()`, nothing synchronises.
/// The context's device is the thread's current CUDA device: operators do not switch.
class Context {
  public:
    /// A CUDA device without index means the current one. runtime Error in a build without CUDA. `kernels` nullptr: the
    /// built-in table of the device's card.
    explicit Context(at::Device device, std::shared_ptr<const spec::KernelTable> kernels = nullptr);
    ~Context();
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

    at::Device device() const { return device_; }
    bool is_cuda() const { return device_.is_cuda(); }
    /// The cudaStream_t that work is issued on (LibTorch's current stream of the device); nullptr on the CPU.
    void* stream() const;
    CudaHandles& cuda() const;

    /// Scratch for library calls (GEMM split-K, attention), from the memory plan: uint8, on the device.
    at::Tensor workspace;
    /// fixed order of every reduction, whatever it costs
    bool deterministic = false;
    /// What was measured of the kernels that could serve a product. Never nullptr; one without choices leaves every
    /// product to the library.
    std::shared_ptr<const spec::KernelTable> kernels;
    /// Readable by the device (host memory on the CPU). Owned by the step.
    const spec::StepScalars* scalars = nullptr;
    /// Written by the device. Owned by the step.
    spec::StepOutcome* outcome = nullptr;
    /// Times the regions that operators and the step open (ops/profiler.h); nullptr: nothing is timed. Not owned.
    Profiler* profiler = nullptr;

  private:
    at::Device device_;
    std::unique_ptr<CudaHandles> cuda_;
};

/// A place in the step where non-finite values are noticed at no cost (norms see every row). `none`: do not report.
/// Codes order by execution: forward of layer i: 2i (input norm), 2i + 1 (post-attention norm); 2L the final norm;
/// 2L + 1 the loss; backward of layer i: 2L + 2 + 2(L - 1 - i) (post norm), + 1 (input norm).
struct Site {
    uint32_t code = spec::all_finite;
};

}  // namespace unsloth::ops
