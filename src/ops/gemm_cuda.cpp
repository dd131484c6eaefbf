// gemm on cuBLASLt: tensors to the kernel library's plain description.
#include "ops/gemm_cuda.h"

#if UNSLOTH_CUDA
#include "kernels/gemm_cublaslt.h"
#include "ops/cuda_handles.h"
#include "unsloth/core/error.h"

namespace unsloth::ops {
namespace {

struct CublasLtSlot final : HandleSlot {
    CublasLtSlot(int device, std::shared_ptr<const spec::KernelTable> kernels)
        : table(std::move(kernels)), library(device, table) {}
    std::shared_ptr<const spec::KernelTable> table;
    kernels::CublasLt library;
};

kernels::CublasLt& library(const Context& ctx) {
    std::unique_ptr<HandleSlot>& slot = ctx.cuda().gemm;
    if (!slot || static_cast<CublasLtSlot&>(*slot).table != ctx.kernels)
        slot = std::make_unique<CublasLtSlot>(ctx.device().index(), ctx.kernels);
    return static_cast<CublasLtSlot&>(*slot).library;
}

spec::DType dtype(const at::Tensor& x) {
    switch (x.scalar_type()) {
        case at::kFloat:
            return spec::DType::f32;
        case at::kBFloat16:
            return spec::DType::bf16;
        case at::kHalf:
            return spec::DType::f16;
        default:
            UNSLOTH_CHECK(false, "gemm: dtype ", x.scalar_type(), " on CUDA");
            return spec::DType::f32;
    }
}

kernels::GemmOperand operand(const at::Tensor& x, bool transpose = false) {
    // A matrix of one row may carry any stride: give it the one that the library accepts.
    const int64_t ld = x.size(0) <= 1 ? std::max(x.size(1), x.stride(0)) : x.stride(0);
    return {x.data_ptr(), std::max<int64_t>(ld, x.size(1)), transpose};
}

}  // namespace

kernels::GemmCase gemm_case(const Gemm& g) {
    kernels::GemmCase problem;
    problem.m = g.out.size(0);
    problem.n = g.out.size(1);
    problem.k = g.a.size(g.transpose_a ? 0 : 1);
    problem.a = operand(g.a, g.transpose_a);
    problem.b = operand(g.b, g.transpose_b);
    problem.c = operand(g.c ? *g.c : g.out);
    problem.out = operand(g.out);
    problem.input_type = dtype(g.a);
    problem.output_type = dtype(g.out);
    problem.bias = g.bias ? g.bias->data_ptr() : nullptr;
    problem.alpha = static_cast<float>(g.alpha);
    problem.beta = static_cast<float>(g.beta);
    return problem;
}

void gemm_cuda(Context& ctx, const Gemm& g) {
    void* workspace = ctx.workspace.defined() ? ctx.workspace.data_ptr() : nullptr;
    const int64_t bytes = ctx.workspace.defined() ? ctx.workspace.nbytes() : 0;
    library(ctx).run(gemm_case(g), workspace, bytes, ctx.stream());
}

int64_t gemm_cuda_workspace(at::Device device) {
    return kernels::cublaslt_workspace(device.index());
}

}  // namespace unsloth::ops
#endif
