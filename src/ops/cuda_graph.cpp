#include "unsloth/ops/cuda_graph.h"

#ifdef UNSLOTH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include "kernels/common/launch.h"
#endif

#include "unsloth/core/error.h"

namespace unsloth::ops {

struct CudaGraph::Graph {
#ifdef UNSLOTH_CUDA
    ~Graph() { cudaGraphExecDestroy(executable); }
    cudaGraphExec_t executable = nullptr;
#endif
};

CudaGraph::CudaGraph(std::unique_ptr<Graph> graph) : graph_(std::move(graph)) {}
CudaGraph::~CudaGraph() = default;
CudaGraph::CudaGraph(CudaGraph&&) noexcept = default;
CudaGraph& CudaGraph::operator=(CudaGraph&&) noexcept = default;

CudaGraph CudaGraph::capture(Context& ctx, const std::function<void()>& work) {
    UNSLOTH_CHECK(ctx.is_cuda(), "only work on a GPU is recorded");
    auto result = std::make_unique<Graph>();
#ifdef UNSLOTH_CUDA
    // The default stream cannot be captured.
    const c10::cuda::CUDAStreamGuard guard(
        c10::cuda::getStreamFromPool(/*isHighPriority=*/false, ctx.device().index()));
    const auto stream = static_cast<cudaStream_t>(ctx.stream());
    UNSLOTH_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    cudaGraph_t graph = nullptr;
    try {
        work();
    } catch (...) {
        cudaStreamEndCapture(stream, &graph);  // leave the stream usable; the first error is the one to report
        if (graph != nullptr) cudaGraphDestroy(graph);
        (void)cudaGetLastError();
        throw;
    }
    UNSLOTH_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    const cudaError_t status = cudaGraphInstantiate(&result->executable, graph, 0);
    cudaGraphDestroy(graph);
    UNSLOTH_CUDA_CHECK(status);
#else
    (void)work;
#endif
    return CudaGraph(std::move(result));
}

void CudaGraph::launch(Context& ctx) const {
#ifdef UNSLOTH_CUDA
    UNSLOTH_CUDA_CHECK(cudaGraphLaunch(graph_->executable, static_cast<cudaStream_t>(ctx.stream())));
#else
    (void)ctx;
#endif
}

}  // namespace unsloth::ops
