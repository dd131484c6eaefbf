// What tests of attention on CUDA share: problems as a layer has them, the CPU operator in fp64 beside them, and what
// is allowed between the two.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/attention_mma.h"
#include "src/ops/attention_impl.h"
#include "unsloth/core/error.h"
#include "unsloth/ops/dtype.h"

namespace unsloth::ops::attention_testing {

inline constexpr double sentinel = 77.0;

inline Segments segments_of(const std::vector<int32_t>& q, const std::vector<int32_t>& k) {
    Segments s;
    s.q_offsets = s.k_offsets = {0};
    s.uniform = true;
    for (std::size_t i = 0; i < q.size(); ++i) {
        s.q_offsets.push_back(s.q_offsets.back() + q[i]);
        s.k_offsets.push_back(s.k_offsets.back() + k[i]);
        s.max_q = std::max(s.max_q, q[i]);
        s.max_k = std::max(s.max_k, k[i]);
        s.uniform = s.uniform && q[i] == q[0] && k[i] == q[i];
    }
    const auto device = [](const std::vector<int32_t>& x) {
        return at::tensor(at::ArrayRef<int32_t>(x), at::kInt).to(at::kCUDA);
    };
    s.q_offsets_device = device(s.q_offsets);
    s.k_offsets_device = device(s.k_offsets);
    return s;
}

inline AttentionShape shape_of(int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t window = 0) {
    return {heads, kv_heads, head_dim, window, 1.0 / std::sqrt(static_cast<double>(head_dim))};
}

/// Rows of `columns` + `margin` with `spare` more rows than tokens; everything but the view holds `fill`.
struct Rows {
    at::Tensor buffer, view;  ///< view [tokens, columns]
    int64_t tokens, columns;
    Rows(int64_t token_count, int64_t column_count, int64_t margin, double fill, at::ScalarType type)
        : buffer(at::full({token_count + 150, column_count + margin}, fill, at::TensorOptions(type).device(at::kCUDA))),
          view(buffer.narrow(0, 0, token_count).narrow(1, 0, column_count)),
          tokens(token_count),
          columns(column_count) {}
    at::Tensor heads(int64_t first, int64_t count, int64_t d) const {
        return view.narrow(1, first * d, count * d).unflatten(1, {count, d});
    }
    bool rest_holds(double fill) const {
        return (buffer.narrow(0, tokens, buffer.size(0) - tokens) == fill).all().item<bool>() &&
               (buffer.narrow(1, columns, buffer.size(1) - columns) == fill).all().item<bool>();
    }
};

/// Inputs and outputs as a layer has them: q, k, v views of one fused buffer, out with room for adapter
/// columns, gradients in one fused buffer with a margin. Rows beyond the tokens of every input are NaN:
/// reading them shows.
struct Problem {
    AttentionShape shape;
    Segments segments;
    int64_t t, s;
    Rows qkv, kv, out, dout, grads;
    at::Tensor q, k, v, o, go, lse, dq, dk, dv;
    at::Tensor sinks;  ///< undefined: the shape has none

    Problem(const AttentionShape& sh, const std::vector<int32_t>& q_lengths, at::ScalarType type,
            const std::vector<int32_t>& k_lengths = {})
        : shape(sh),
          segments(segments_of(q_lengths, k_lengths.empty() ? q_lengths : k_lengths)),
          t(segments.q_offsets.back()),
          s(segments.k_offsets.back()),
          qkv(t, (sh.heads + 2 * sh.kv_heads) * sh.head_dim, 8, nan(), type),
          kv(s, 2 * sh.kv_heads * sh.head_dim, 8, nan(), type),
          out(t, sh.heads * sh.head_dim, 16, sentinel, type),
          dout(t, sh.heads * sh.head_dim, 24, nan(), type),
          grads(std::max(t, s), (sh.heads + 2 * sh.kv_heads) * sh.head_dim, 48, sentinel, type) {
        const int64_t h = sh.heads, n = sh.kv_heads, d = sh.head_dim;
        for (Rows* x : {&qkv, &kv, &dout})
            x->view.copy_(at::randn(x->view.sizes(), x->view.options().dtype(at::kFloat)));
        q = qkv.heads(0, h, d), o = out.heads(0, h, d), go = dout.heads(0, h, d);
        k = t == s ? qkv.heads(h, n, d) : kv.heads(0, n, d);
        v = t == s ? qkv.heads(h + n, n, d) : kv.heads(n, n, d);
        lse = at::full({h * t + 7}, sentinel, at::TensorOptions(at::kFloat).device(at::kCUDA));
        dq = grads.heads(0, h, d).narrow(0, 0, t), dk = grads.heads(h, n, d).narrow(0, 0, s),
        dv = grads.heads(h + n, n, d).narrow(0, 0, s);
        if (sh.sinks) sinks = at::randn({h}, lse.options()).mul(2);
    }
    static double nan() { return std::numeric_limits<double>::quiet_NaN(); }
    AttentionForward forward() const { return {q, k, v, o, lse, sinks}; }
    AttentionBackward backward() const { return {go, q, k, v, o, lse, dq, dk, dv}; }
    void clear() {
        out.view.fill_(sentinel);
        grads.view.fill_(sentinel);
        lse.fill_(sentinel);
    }
};

struct Result {
    at::Tensor out, dq, dk, dv;
};

inline Result keep(const Problem& p) {
    const auto copy = [](const at::Tensor& x) { return x.contiguous().cpu().to(at::kDouble); };
    return {copy(p.o), copy(p.dq), copy(p.dk), copy(p.dv)};
}

/// The CPU operator in fp64 on the same (rounded) inputs.
inline Result reference(const Problem& p) {
    Context ctx(at::kCPU);
    const auto cpu = [](const at::Tensor& x) { return x.cpu().to(at::kDouble); };
    const at::Tensor q = cpu(p.q), k = cpu(p.k), v = cpu(p.v), go = cpu(p.go);
    Result r{at::empty(q.sizes(), q.options()), at::empty(q.sizes(), q.options()), at::empty(k.sizes(), q.options()),
             at::empty(k.sizes(), q.options())};
    const at::Tensor lse = at::empty({p.shape.heads, p.t}, q.options());
    attention_forward(ctx, p.shape, p.segments, q, k, v, r.out, lse, p.sinks.defined() ? cpu(p.sinks) : at::Tensor());
    attention_backward(ctx, p.shape, p.segments, go, q, k, v, r.out, lse, r.dq, r.dk, r.dv);
    return r;
}

struct Tolerance {
    double rms, most;  ///< of the error: root mean square of a segment, largest element; both relative to the
                       ///< tensor's
};
inline Tolerance tolerance(at::ScalarType type, CudaForm form, int64_t head_dim = 0) {
    // Tensor cores take probabilities and their gradients rounded to the compute dtype: cuDNN's, and the portable
    // form's where they serve the head_dim.
    const bool rounded = form != CudaForm::portable ||
                         (head_dim > 0 && kernels::attention_mma_serves(dtype_of(type), static_cast<int>(head_dim)));
    switch (type) {
        case at::kFloat:
            return {5e-6, 5e-5};
        case at::kHalf:
            return rounded ? Tolerance{2e-3, 1e-2} : Tolerance{1e-3, 5e-3};
        default:
            return rounded ? Tolerance{1.2e-2, 4e-2} : Tolerance{6e-3, 3e-2};
    }
}

inline double rms(const at::Tensor& x) {
    return std::sqrt(x.square().mean().item<double>());
}

/// Inputs are standard normal: the gradient of a row that sees one or two keys is a small (or zero) difference of terms
/// of order 1, whose rounding stays.
inline constexpr double term_scale = 0.3;

/// Segment by segment, so that a wrong short segment cannot hide behind a long one.
inline void expect_close(const char* name, const at::Tensor& actual, const at::Tensor& expected,
                         const std::vector<int32_t>& offsets, Tolerance allowed) {
    const double whole = rms(expected), largest = expected.abs().max().item<double>();
    for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
        const at::Tensor e = expected.narrow(0, offsets[i], offsets[i + 1] - offsets[i]);
        const at::Tensor error = actual.narrow(0, offsets[i], offsets[i + 1] - offsets[i]) - e;
        const double found = rms(error), most = error.abs().max().item<double>();
        const bool good = found <= allowed.rms * (rms(e) + 0.1 * whole + term_scale) &&
                          most <= allowed.most * (largest + term_scale);  // false for NaN
        EXPECT_TRUE(good) << name << ", segment " << i << " of " << offsets[i + 1] - offsets[i]
                          << " tokens: rms of the error " << found << " (of the values " << rms(e) << "), largest "
                          << most << " (of " << largest << ")";
        if (!good) return;
    }
}

inline void expect_close(const Problem& p, const Result& actual, const Result& expected, Tolerance allowed) {
    expect_close("out", actual.out, expected.out, p.segments.q_offsets, allowed);
    expect_close("dq", actual.dq, expected.dq, p.segments.q_offsets, allowed);
    expect_close("dk", actual.dk, expected.dk, p.segments.k_offsets, allowed);
    expect_close("dv", actual.dv, expected.dv, p.segments.k_offsets, allowed);
}

inline const char* name_of_form(CudaForm form) {
    switch (form) {
        case CudaForm::dense:
            return "dense";
        case CudaForm::chunks:
            return "chunks";
        case CudaForm::tiles:
            return "tiles";
        case CudaForm::packed:
            return "packed";
        default:
            return "portable";
    }
}

class AttentionGpu : public ::testing::Test {
  protected:
    void SetUp() override {
        if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
        ctx = std::make_unique<Context>(at::Device(at::kCUDA, 0));
        at::manual_seed(11);
    }

    void plan(const Problem& p) {
        const int64_t bytes =
            plans_keys ? attention_workspace(p.shape, p.q.scalar_type(), ctx->device(), ctx->deterministic, p.t,
                                             p.segments.count(), p.segments.max_k, /*backward=*/true, p.s)
                       : attention_workspace(p.shape, p.q.scalar_type(), ctx->device(), ctx->deterministic, p.t,
                                             p.segments.count(), p.segments.max_q);
        ctx->workspace =
            at::full({bytes}, 0xFF,
                     at::TensorOptions(at::kByte).device(at::kCUDA));  // NaN: scratch is not assumed to be zero
    }

    Result run(Problem& p, CudaChoice choice) {
        p.clear();
        attention_cuda_forward(*ctx, p.shape, p.segments, p.forward(), choice);
        attention_cuda_backward(*ctx, p.shape, p.segments, p.backward(), choice);
        EXPECT_TRUE(p.out.rest_holds(sentinel)) << "out was written beyond its rows and columns";
        EXPECT_TRUE(p.grads.rest_holds(sentinel)) << "gradients were written beyond their rows and columns";
        EXPECT_TRUE((p.lse.narrow(0, p.shape.heads * p.t, 7) == sentinel).all().item<bool>());
        return keep(p);
    }

    /// The form that is chosen, the portable kernels, and the portable backward behind the chosen forward.
    void check(Problem& p, CudaForm expected_form) {
        plan(p);
        const at::ScalarType type = p.q.scalar_type();
        const Result expected = reference(p);
        const CudaChoice choice = choose_forward(*ctx, p.shape, p.segments, p.forward());
        EXPECT_EQ(name_of_form(choice.kernels), name_of_form(expected_form));
        EXPECT_EQ(choose_backward(*ctx, p.shape, p.segments, p.backward()).kernels, expected_form);
        {
            SCOPED_TRACE("portable");
            expect_close(p, run(p, {}), expected, tolerance(type, CudaForm::portable, p.shape.head_dim));
        }
        if (choice.kernels == CudaForm::portable) return;
        {
            SCOPED_TRACE(name_of_form(choice.kernels));
            expect_close(p, run(p, choice), expected, tolerance(type, choice.kernels));
        }
        SCOPED_TRACE(cat("portable backward behind ", name_of_form(choice.kernels)));
        p.grads.view.fill_(sentinel);
        attention_cuda_backward(*ctx, p.shape, p.segments, p.backward(), {CudaForm::portable, choice.lse_order});
        expect_close(p, keep(p), expected, tolerance(type, choice.kernels));
    }

    std::unique_ptr<Context> ctx;
    bool plans_keys = false;  ///< segments with more keys than queries are planned for
};

inline bool equal(const Result& a, const Result& b) {
    return at::equal(a.out, b.out) && at::equal(a.dq, b.dq) && at::equal(a.dk, b.dk) && at::equal(a.dv, b.dv);
}

inline int64_t allocations() {
    return c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocation[0].allocated;
}

}  // namespace unsloth::ops::attention_testing
