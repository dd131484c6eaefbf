// Checks of a product of 8-bit codes and its CPU form.
#include "unsloth/ops/gemm_coded.h"

#include "ops/checks.h"
#include "ops/code_values.h"
#include "ops/gemm_coded_cuda.h"
#include "unsloth/ops/profiler.h"

namespace unsloth::ops {
namespace {

void check(const Context& ctx, const GemmCoded& g) {
    UNSLOTH_CHECK(g.out.defined() && g.out.dim() == 2 && g.x.codes.defined() && g.x.codes.dim() == 2,
                  "gemm_coded: out and x must be matrices");
    const int64_t m = g.out.size(0), n = g.out.size(1), k = g.x.codes.size(1);
    const at::ScalarType type = g.out.scalar_type();
    UNSLOTH_CHECK(n > 0 && n % 8 == 0 && k > 0 && k % 16 == 0, "gemm_coded: N is ", n, ", K is ", k,
                  ", expected multiples of 8 and 16");
    UNSLOTH_CHECK(type == at::kBFloat16 || (type == at::kFloat && !ctx.is_cuda()), "gemm_coded: out is ", type);
    check_coded(ctx, "x", g.x, m, k);
    check_coded(ctx, "w", g.w, n, k);
    UNSLOTH_CHECK(is_int8(g.x) == is_int8(g.w) && g.w.scales.dim() == 1 && (g.x.scales.dim() == 2) == is_int8(g.x),
                  "gemm_coded: x and w are of different kinds");
    check_tensor(ctx, "out", g.out, {m, n}, type);
    UNSLOTH_CHECK(g.u.has_value() == g.b.has_value(), "gemm_coded: u and b come together");
    if (g.u) {
        const int64_t rank = g.u->dim() == 2 ? g.u->size(1) : 0;
        UNSLOTH_CHECK(rank > 0 && rank % 8 == 0, "gemm_coded: u is ", g.u->sizes(),
                      ", expected a multiple of 8 columns");
        check_tensor(ctx, "u", *g.u, {m, rank}, type);
        check_tensor(ctx, "b", *g.b, {n, rank}, type);
    }
    if (g.residual) check_tensor(ctx, "residual", *g.residual, {m, n}, type);
    if (g.bias) check_contiguous(ctx, "bias", *g.bias, {n}, type);
}

void gemm_coded_cpu(const GemmCoded& g) {
    at::Tensor sum = at::mm(levelled_values(g.x), levelled_values(g.w).t());
    if (g.u) sum.addmm_(g.u->to(at::kFloat), g.b->to(at::kFloat).t());
    if (g.residual) sum.add_(*g.residual);
    if (g.bias) sum.add_(*g.bias);
    g.out.copy_(sum);
}

}  // namespace

void gemm_coded(Context& ctx, const GemmCoded& args) {
    const Region region(ctx, args.label);
    check(ctx, args);
    if (args.out.numel() == 0) return;
#if UNSLOTH_CUDA
    if (ctx.is_cuda()) return gemm_coded_cuda(ctx, args);
#endif
    gemm_coded_cpu(args);
}

}  // namespace unsloth::ops
