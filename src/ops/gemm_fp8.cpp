// Checks of an e4m3 product and its CPU form.
#include "unsloth/ops/gemm_fp8.h"

#include "ops/checks.h"
#include "ops/gemm_fp8_cuda.h"
#include "unsloth/ops/profiler.h"

namespace unsloth::ops {
namespace {

void check(const Context& ctx, const GemmFp8& g) {
    UNSLOTH_CHECK(g.out.defined() && g.out.dim() == 2 && g.x.codes.defined() && g.x.codes.dim() == 2,
                  "gemm_fp8: out and x must be matrices");
    const int64_t m = g.out.size(0), n = g.out.size(1), k = g.x.codes.size(1);
    const at::ScalarType type = g.out.scalar_type();
    UNSLOTH_CHECK(n > 0 && n % 8 == 0 && k > 0 && k % 16 == 0, "gemm_fp8: N is ", n, ", K is ", k,
                  ", expected multiples of 8 and 16");
    UNSLOTH_CHECK(type == at::kBFloat16 || (type == at::kFloat && !ctx.is_cuda()), "gemm_fp8: out is ", type);
    check_fp8(ctx, "x", g.x, m, k);
    check_fp8(ctx, "w", g.w, n, k);
    check_tensor(ctx, "out", g.out, {m, n}, type);
    UNSLOTH_CHECK(g.u.has_value() == g.b.has_value(), "gemm_fp8: u and b come together");
    if (g.u) {
        const int64_t rank = g.u->dim() == 2 ? g.u->size(1) : 0;
        UNSLOTH_CHECK(rank > 0 && rank % 8 == 0, "gemm_fp8: u is ", g.u->sizes(), ", expected a multiple of 8 columns");
        check_tensor(ctx, "u", *g.u, {m, rank}, type);
        check_tensor(ctx, "b", *g.b, {n, rank}, type);
    }
    if (g.residual) check_tensor(ctx, "residual", *g.residual, {m, n}, type);
    if (g.bias) check_contiguous(ctx, "bias", *g.bias, {n}, type);
}

at::Tensor dequantize(const Fp8Matrix& matrix) {
    return matrix.codes.view(at::kFloat8_e4m3fn).to(at::kFloat).mul_(matrix.scales.unsqueeze(1));
}

void gemm_fp8_cpu(const GemmFp8& g) {
    at::Tensor sum = at::mm(dequantize(g.x), dequantize(g.w).t());
    if (g.u) sum.addmm_(g.u->to(at::kFloat), g.b->to(at::kFloat).t());
    if (g.residual) sum.add_(*g.residual);
    if (g.bias) sum.add_(*g.bias);
    g.out.copy_(sum);
}

}  // namespace

void gemm_fp8(Context& ctx, const GemmFp8& args) {
    const Region region(ctx, args.label);
    check(ctx, args);
    if (args.out.numel() == 0) return;
#if UNSLOTH_CUDA
    if (ctx.is_cuda()) return gemm_fp8_cuda(ctx, args);
#endif
    gemm_fp8_cpu(args);
}

}  // namespace unsloth::ops
