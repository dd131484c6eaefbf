// Work on the GPU that is recorded once and issued again with one call (a CUDA graph), so that a step of many small
// kernels does not wait for the host.
#pragma once

#include <functional>
#include <memory>

#include "unsloth/ops/context.h"

namespace unsloth::ops {

class CudaGraph {
  public:
    /// Records what `work` issues on the context's stream (and on streams that it makes wait for it and joins again);
    /// nothing is executed. `work` must not allocate device memory or wait for the device, and everything that it reads
    /// and writes must stay where it is for as long as the recording is used. Capture is thread-local: other threads
    /// may use CUDA meanwhile. CheckError on the CPU, runtime Error when CUDA refuses.
    static CudaGraph capture(Context& ctx, const std::function<void()>& work);
    ~CudaGraph();
    CudaGraph(CudaGraph&&) noexcept;
    CudaGraph& operator=(CudaGraph&&) noexcept;

    /// Issues the recorded work on the context's stream.
    void launch(Context& ctx) const;

  private:
    struct Graph;
    explicit CudaGraph(std::unique_ptr<Graph> graph);
    std::unique_ptr<Graph> graph_;
};

}  // namespace unsloth::ops
