// gemm_coded on CUDA: our kernel or cuBLASLt, as the table of measurements says.
#include "ops/gemm_coded_cuda.h"

#if UNSLOTH_CUDA
#include <ATen/cuda/CUDAContext.h>

#include "kernels/fp8_gemm_sm90.h"
#include "kernels/gemm_fp8_cublaslt.h"
#include "ops/cuda_handles.h"
#include "ops/gemm_fp8_choice.h"
#include "ops/kernel_arguments.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/ops/gemm.h"

namespace unsloth::ops {
namespace {

struct Fp8Slot final : HandleSlot {
    explicit Fp8Slot(int device) : library(device) {
        const cudaDeviceProp& card = *at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(device));
        if (card.major == 9 && card.minor == 0 && kernels::fp8_gemm_sm90_built()) own.emplace();
    }
    kernels::Fp8GemmCublasLt library;
    std::optional<kernels::Fp8GemmSm90> own;
    bool warned = false;
};

Fp8Slot& slot(const Context& ctx) {
    std::unique_ptr<HandleSlot>& slot = ctx.cuda().gemm_fp8;
    if (!slot) slot = std::make_unique<Fp8Slot>(ctx.device().index());
    return static_cast<Fp8Slot&>(*slot);
}

kernels::Fp8GemmCase describe(const GemmCoded& g) {
    kernels::Fp8GemmCase p;
    p.m = g.out.size(0);
    p.n = g.out.size(1);
    p.k = g.x.codes.size(1);
    p.x = g.x.codes.const_data_ptr();
    p.sx = g.x.scales.const_data_ptr<float>();
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

void with_library(Context& ctx, kernels::Fp8GemmCublasLt& library, const GemmCoded& g, kernels::Fp8GemmCase p) {
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
    Fp8Slot& handles = slot(ctx);
    const kernels::Fp8GemmCase problem = describe(g);
    const Fp8GemmChoice choice = fp8_gemm_choice(*ctx.kernels, problem.m, problem.n, problem.k, problem.rank);
    if (choice.own && handles.own && kernels::fp8_gemm_sm90_takes(problem))
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
