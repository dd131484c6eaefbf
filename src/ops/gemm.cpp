// Checks of a matrix product, its CPU form, and the cases that need no multiplication.
#include "unsloth/ops/gemm.h"

#include "ops/checks.h"
#include "ops/cpu_scratch.h"
#include "ops/gemm_cuda.h"
#include "unsloth/core/error.h"
#include "unsloth/ops/device.h"
#include "unsloth/ops/profiler.h"

namespace unsloth::ops {
namespace {

void check(const Context& ctx, const Gemm& g) {
    for (const at::Tensor* x : {&g.a, &g.b, &g.out})
        UNSLOTH_CHECK(x->defined() && x->dim() == 2, "gemm: a, b and out must be matrices");
    const int64_t m = g.a.size(g.transpose_a ? 1 : 0), k = g.a.size(g.transpose_a ? 0 : 1);
    const int64_t kb = g.b.size(g.transpose_b ? 1 : 0), n = g.b.size(g.transpose_b ? 0 : 1);
    UNSLOTH_CHECK(k == kb, "gemm: a has K = ", k, ", b has K = ", kb);
    const at::ScalarType in = g.a.scalar_type(), out = g.out.scalar_type();
    const bool floating =
        in == at::kFloat || in == at::kBFloat16 || in == at::kHalf || (!ctx.is_cuda() && in == at::kDouble);
    UNSLOTH_CHECK(floating, "gemm: dtype ", in, " is not supported");
    check_matrix(ctx, "a", g.a, -1, -1, in);
    check_matrix(ctx, "b", g.b, -1, -1, in);
    check_matrix(ctx, "out", g.out, m, n, out);
    UNSLOTH_CHECK(out == in || (out == at::kFloat && in != at::kDouble), "gemm: out is ", out, " for inputs of ", in);
    if (g.c) check_matrix(ctx, "c", *g.c, m, n, out);
    if (g.bias) check_contiguous(ctx, "bias", *g.bias, {n}, out);
}

/// out = beta c + bias.
void without_product(const Gemm& g) {
    if (g.beta == 0.0) {
        g.out.zero_();
    } else {
        if (g.c && !g.c->is_same(g.out)) g.out.copy_(*g.c);
        if (g.beta != 1.0) g.out.mul_(g.beta);
    }
    if (g.bias) g.out.add_(*g.bias);
}

at::ScalarType accumulate_type(const at::Tensor& x) {
    return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

void gemm_cpu(const Context& ctx, const Gemm& g) {
    const at::ScalarType type = accumulate_type(g.out);
    cpu::Scratch scratch(ctx);
    const auto widened = [&](const at::Tensor& x, bool transpose) {
        if (x.scalar_type() == type) return transpose ? x.t() : x;
        const at::Tensor copy = scratch.take(x.sizes(), type);
        copy.copy_(x);
        return transpose ? copy.t() : copy;
    };
    const at::Tensor a = widened(g.a, g.transpose_a), b = widened(g.b, g.transpose_b);
    // With out in the accumulation type the product goes straight into it, strided or not.
    at::Tensor sum = g.out.scalar_type() == type ? g.out : scratch.take(g.out.sizes(), type);
    if (g.beta == 0.0) {
        at::mm_out(sum, a, b);
        if (g.alpha != 1.0) sum.mul_(g.alpha);
    } else {
        const at::Tensor& c = g.c ? *g.c : g.out;
        if (!c.is_same(sum)) sum.copy_(c);
        sum.addmm_(a, b, g.beta, g.alpha);
    }
    if (g.bias) sum.add_(widened(*g.bias, /*transpose=*/false));
    if (!sum.is_same(g.out)) g.out.copy_(sum);
}

}  // namespace

void gemm(Context& ctx, const Gemm& args) {
    const Region region(ctx, args.label);
    check(ctx, args);
    if (args.out.numel() == 0) return;
    const int64_t k = args.a.size(args.transpose_a ? 0 : 1);
    if (k == 0 || args.alpha == 0.0) return without_product(args);
#if UNSLOTH_CUDA
    if (ctx.is_cuda()) return gemm_cuda(ctx, args);
#endif
    gemm_cpu(ctx, args);
}

int64_t gemm_workspace(at::Device device) {
    constexpr int64_t of_any_card = int64_t{32} << 20;
    if (is_absent(device)) return of_any_card;
#if UNSLOTH_CUDA
    if (device.is_cuda()) return gemm_cuda_workspace(device);
#endif
    UNSLOTH_CHECK(device.is_cpu(), "this program was built without CUDA");
    return 0;
}

int64_t gemm_cpu_workspace(at::ScalarType dtype, int64_t m, int64_t n, int64_t k) {
    if (dtype == at::kFloat || dtype == at::kDouble) return 0;
    const auto bytes = [](int64_t elements) {
        return cpu::Scratch::rounded(elements * static_cast<int64_t>(sizeof(float)));
    };
    return bytes(m * k) + bytes(n * k) + bytes(m * n) + bytes(n);
}

}  // namespace unsloth::ops
