// Checks of a matrix product, its CPU form, and the cases that need no multiplication.
#include "unsloth/ops/gemm.h"

#include "ops/cpu_scratch.h"
#include "ops/gemm_cuda.h"
#include "unsloth/core/error.h"
#include "unsloth/ops/profiler.h"

namespace unsloth::ops {
namespace {

void check_matrix(const at::Tensor& x, const char* name) {
    UNSLOTH_CHECK(x.defined() && x.dim() == 2, "gemm: ", name, " must be a matrix");
    UNSLOTH_CHECK(x.size(1) <= 1 || x.stride(1) == 1, "gemm: ", name,
                  "'s last dimension must be contiguous, its strides are ", x.strides());
    UNSLOTH_CHECK(x.size(0) <= 1 || x.stride(0) >= x.size(1), "gemm: rows of ", name, " overlap: sizes ", x.sizes(),
                  ", strides ", x.strides());
}

void check(const Context& ctx, const Gemm& g) {
    check_matrix(g.a, "a");
    check_matrix(g.b, "b");
    check_matrix(g.out, "out");
    const int64_t m = g.a.size(g.transpose_a ? 1 : 0), k = g.a.size(g.transpose_a ? 0 : 1);
    const int64_t kb = g.b.size(g.transpose_b ? 1 : 0), n = g.b.size(g.transpose_b ? 0 : 1);
    UNSLOTH_CHECK(k == kb, "gemm: a has K = ", k, ", b has K = ", kb);
    UNSLOTH_CHECK(g.out.size(0) == m && g.out.size(1) == n, "gemm: out is ", g.out.sizes(), ", expected [", m, ", ", n,
                  "]");
    const at::ScalarType in = g.a.scalar_type(), out = g.out.scalar_type();
    const bool floating =
        in == at::kFloat || in == at::kBFloat16 || in == at::kHalf || (!ctx.is_cuda() && in == at::kDouble);
    UNSLOTH_CHECK(floating, "gemm: dtype ", in, " is not supported");
    UNSLOTH_CHECK(g.b.scalar_type() == in, "gemm: a is ", in, ", b is ", g.b.scalar_type());
    UNSLOTH_CHECK(out == in || (out == at::kFloat && in != at::kDouble), "gemm: out is ", out, " for inputs of ", in);
    if (g.c) {
        check_matrix(*g.c, "c");
        UNSLOTH_CHECK(g.c->sizes() == g.out.sizes() && g.c->scalar_type() == out, "gemm: c is ", g.c->scalar_type(),
                      " ", g.c->sizes(), ", out is ", out, " ", g.out.sizes());
    }
    if (g.bias) {
        UNSLOTH_CHECK(
            g.bias->dim() == 1 && g.bias->size(0) == n && g.bias->is_contiguous() && g.bias->scalar_type() == out,
            "gemm: bias is ", g.bias->scalar_type(), " ", g.bias->sizes(), ", expected ", out, " [", n, "]");
    }
    for (const at::Tensor* x : {&g.a, &g.b, &g.out, g.c ? &*g.c : &g.out, g.bias ? &*g.bias : &g.out})
        UNSLOTH_CHECK(x->device() == ctx.device(), "gemm: a tensor is on ", x->device(), ", the context on ",
                      ctx.device());
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
