// gemm_coded on CUDA: our kernel; of e4m3 that or cuBLASLt, as the table of measurements says.
#include "ops/gemm_coded_cuda.h"

#if UNSLOTH_CUDA
#include <ATen/cuda/CUDAContext.h>

#include "kernels/coded_gemm_sm90.h"
#include "kernels/gemm_fp8_cublaslt.h"
#include "kernels/int8_gemm_mma.h"
#include "ops/cuda_handles.h"
#include "ops/gemm_coded_choice.h"
#include "ops/kernel_arguments.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/ops/gemm.h"

namespace unsloth::ops {
namespace {

struct CodedSlot final : HandleSlot {
    explicit CodedSlot(int device) : library(device) {
        const cudaDeviceProp& card = *at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(device));
        if (card.major == 9 && card.minor == 0 && kernels::coded_gemm_sm90_built()) own.emplace();
    }
    kernels::Fp8GemmCublasLt library;
    std::optional<kernels::CodedGemmSm90> own;
    bool warned = false;
};

CodedSlot& slot(const Context& ctx) {
    std::unique_ptr<HandleSlot>& slot = ctx.cuda().gemm_coded;
    if (!slot) slot = std::make_unique<CodedSlot>(ctx.device().index());
    return static_cast<CodedSlot&>(*slot);
}

kernels::CodedGemmCase describe(const GemmCoded& g) {
    kernels::CodedGemmCase p;
    p.m = g.out.size(0);
    p.n = g.out.size(1);
    p.k = g.x.codes.size(1);
    p.x = g.x.codes.const_data_ptr();
    p.sx = g.x.scales.const_data_ptr<float>();
    if (is_int8(g.x)) {
        p.format = kernels::CodeFormat::int8;
        p.sx_stride = g.x.scales.stride(0);
    }
    p.w = g.w.codes.const_data_ptr();
    p.sw = g.w.scales.const_data_ptr<float>();
    if (g.u) {
        p.rank = g.u->size(1);
        p.u = g.u->const_data_ptr();
        p.u_stride = padded_row_stride(*g.u);
        p.b = g.b->const_data_ptr();
        p.b_stride = padded_row_stride(*g.b);
    }
    if (g.residual) {
        p.residual = g.residual->const_data_ptr();
        p.residual_stride = padded_row_stride(*g.residual);
    }
    p.bias = g.bias ? g.bias->const_data_ptr() : nullptr;
    p.y = g.out.data_ptr();
    p.y_stride = padded_row_stride(g.out);
    return p;
}

void with_library(Context& ctx, kernels::Fp8GemmCublasLt& library, const GemmCoded& g, kernels::CodedGemmCase p) {
    if (g.u) {
        gemm(
            ctx,
            {.a = *g.u, .b = *g.b, .out = g.out, .transpose_b = true, .beta = g.residual ? 1.0 : 0.0, .c = g.residual});
        p.rank = 0;
        p.residual = p.y;
        p.residual_stride = p.y_stride;
    }
    void* workspace = ctx.workspace.defined() ? ctx.workspace.data_ptr() : nullptr;
    const int64_t bytes = ctx.workspace.defined() ? ctx.workspace.nbytes() : 0;
    library.run(p, true, workspace, bytes, ctx.stream());
}

}  // namespace

void gemm_coded_cuda(Context& ctx, const GemmCoded& g) {
    CodedSlot& handles = slot(ctx);
    const kernels::CodedGemmCase problem = describe(g);
    if (problem.format == kernels::CodeFormat::int8) {
        const auto stream = static_cast<cudaStream_t>(ctx.stream());
        if (!handles.own) return kernels::int8_gemm_mma(problem, stream);
        const int64_t multiprocessors = at::cuda::getDeviceProperties(ctx.device().index())->multiProcessorCount;
        return handles.own->run(problem, int8_gemm_tile(multiprocessors, problem.m, problem.n), stream);
    }
    const CodedGemmChoice choice = coded_gemm_choice(*ctx.kernels, problem.m, problem.n, problem.k, problem.rank);
    if (choice.own && handles.own && kernels::coded_gemm_sm90_takes(problem))
        return handles.own->run(problem, choice.tile, static_cast<cudaStream_t>(ctx.stream()));
    if (choice.own && !handles.warned) {
        handles.warned = true;
        log::warning("products in 8 bit whose rows do not start at multiples of 16 bytes, such as ", problem.m, " x ",
                     problem.n, " x ", problem.k,
                     " here, go to cuBLASLt and a second product for the adapters, 4 to 12 % slower");
    }
    with_library(ctx, handles.library, g, problem);
}

}  // namespace unsloth::ops
#endif
