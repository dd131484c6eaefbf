// Attention on CUDA: cuDNN's dense and packed forms and the portable kernels, each against the CPU operator
// in fp64; and the promises around them (untouched neighbours, repeatability, no allocation, capture in a
// CUDA graph).
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <iostream>
#include <limits>

#include "kernels/attention_mma.h"
#include "src/ops/attention_impl.h"
#include "unsloth/core/error.h"
#include "unsloth/ops/dtype.h"
#include "unsloth/spec/kernel_table.h"

namespace unsloth::ops {
namespace {

constexpr double sentinel = 77.0;

Segments segments_of(const std::vector<int32_t>& q, const std::vector<int32_t>& k) {
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

AttentionShape shape_of(int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t window = 0) {
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
    }
    static double nan() { return std::numeric_limits<double>::quiet_NaN(); }
    AttentionForward forward() const { return {q, k, v, o, lse}; }
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

Result keep(const Problem& p) {
    const auto copy = [](const at::Tensor& x) { return x.contiguous().cpu().to(at::kDouble); };
    return {copy(p.o), copy(p.dq), copy(p.dk), copy(p.dv)};
}

/// The CPU operator in fp64 on the same (rounded) inputs.
Result reference(const Problem& p) {
    Context ctx(at::kCPU);
    const auto cpu = [](const at::Tensor& x) { return x.cpu().to(at::kDouble); };
    const at::Tensor q = cpu(p.q), k = cpu(p.k), v = cpu(p.v), go = cpu(p.go);
    Result r{at::empty(q.sizes(), q.options()), at::empty(q.sizes(), q.options()), at::empty(k.sizes(), q.options()),
             at::empty(k.sizes(), q.options())};
    const at::Tensor lse = at::empty({p.shape.heads, p.t}, q.options());
    attention_forward(ctx, p.shape, p.segments, q, k, v, r.out, lse);
    attention_backward(ctx, p.shape, p.segments, go, q, k, v, r.out, lse, r.dq, r.dk, r.dv);
    return r;
}

struct Tolerance {
    double rms, most;  ///< of the error: root mean square of a segment, largest element; both relative to the
                       ///< tensor's
};
Tolerance tolerance(at::ScalarType type, CudaForm form, int64_t head_dim = 0) {
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

double rms(const at::Tensor& x) {
    return std::sqrt(x.square().mean().item<double>());
}

/// Inputs are standard normal: the gradient of a row that sees one or two keys is a small (or zero) difference of terms
/// of order 1, whose rounding stays.
constexpr double term_scale = 0.3;

/// Segment by segment, so that a wrong short segment cannot hide behind a long one.
void expect_close(const char* name, const at::Tensor& actual, const at::Tensor& expected,
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

void expect_close(const Problem& p, const Result& actual, const Result& expected, Tolerance allowed) {
    expect_close("out", actual.out, expected.out, p.segments.q_offsets, allowed);
    expect_close("dq", actual.dq, expected.dq, p.segments.q_offsets, allowed);
    expect_close("dk", actual.dk, expected.dk, p.segments.k_offsets, allowed);
    expect_close("dv", actual.dv, expected.dv, p.segments.k_offsets, allowed);
}

const char* name_of_form(CudaForm form) {
    switch (form) {
        case CudaForm::dense:
            return "dense";
        case CudaForm::chunks:
            return "chunks";
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

std::vector<int32_t> tiny_segments() {
    std::vector<int32_t> lengths;
    for (int i = 0; i < 40; ++i) lengths.push_back(1 + i % 3);
    return lengths;
}

TEST_F(AttentionGpu, DenseForm) {
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf})
        for (const AttentionShape& shape :
             {shape_of(32, 8, 128), shape_of(4, 2, 64), shape_of(4, 2, 128), shape_of(4, 4, 32), shape_of(4, 1, 96),
              shape_of(4, 2, 256), shape_of(4, 2, 128, 100), shape_of(4, 2, 64, 1), shape_of(4, 2, 64, 256)}) {
            SCOPED_TRACE(cat(c10::toString(type), " H ", shape.heads, " K ", shape.kv_heads, " d ", shape.head_dim,
                             " window ", shape.window));
            Problem p(shape, {256, 256, 256}, type);
            check(p, CudaForm::dense);
        }
    Problem one(shape_of(8, 2, 128), {1024}, at::kBFloat16);
    check(one, CudaForm::dense);
}

TEST_F(AttentionGpu, PackedForm) {
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf})
        for (const AttentionShape& shape :
             {shape_of(32, 8, 128), shape_of(4, 2, 64), shape_of(4, 4, 32), shape_of(4, 1, 96), shape_of(4, 2, 256),
              shape_of(4, 2, 128, 100), shape_of(4, 2, 64, 1)})
            for (const std::vector<int32_t>& lengths :
                 {std::vector<int32_t>{700, 3, 129, 1, 40}, tiny_segments(), std::vector<int32_t>{5, 900}}) {
                SCOPED_TRACE(cat(c10::toString(type), " H ", shape.heads, " K ", shape.kv_heads, " d ", shape.head_dim,
                                 " window ", shape.window, ", ", lengths.size(), " segments"));
                Problem p(shape, lengths, type);
                check(p, CudaForm::packed);
            }
    Problem one(shape_of(8, 2, 128), {1001},
                at::kBFloat16);  // a single segment that no dense plan is made for
    check(one, CudaForm::packed);
}

// What the pairs of preferences take whose prompts are shared.
TEST_F(AttentionGpu, PackedFormWithMoreKeysThanQueries) {
    plans_keys = true;
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf})
        for (const AttentionShape& shape : {shape_of(32, 8, 128), shape_of(4, 2, 64), shape_of(4, 1, 96),
                                            shape_of(4, 2, 128, 100), shape_of(4, 2, 64, 1)})
            for (const auto& [queries, keys] : {std::pair<std::vector<int32_t>, std::vector<int32_t>>{
                                                    {700, 300, 3, 1, 129, 40}, {700, 600, 3, 2, 129, 900}},
                                                {{256, 128}, {256, 256}},
                                                {{5, 1}, {5, 5}}}) {
                SCOPED_TRACE(cat(c10::toString(type), " H ", shape.heads, " K ", shape.kv_heads, " d ", shape.head_dim,
                                 " window ", shape.window, ", ", queries.size(), " segments"));
                Problem p(shape, queries, type, keys);
                check(p, CudaForm::packed);
            }
}

// What a context-parallel rank takes: of each sequence its chunks r and 2 ranks - 1 - r, over all before them. A plan
// for the largest serves the others.
TEST_F(AttentionGpu, PackedFormOfChunksOfSequences) {
    plans_keys = true;
    for (const AttentionShape& shape : {shape_of(32, 8, 128), shape_of(4, 2, 64), shape_of(4, 2, 128, 700)})
        for (const auto& [queries, keys] : {std::pair<std::vector<int32_t>, std::vector<int32_t>>{
                                                {512, 512}, {512, 2048}},  // 2048 on two ranks: the first's,
                                            {{512, 512}, {1024, 1536}},    // and the second's
                                            {{251, 250, 3, 2}, {251, 1001, 3, 9}},
                                            {{1, 125, 126, 1}, {1, 375, 501, 2}}}) {
            SCOPED_TRACE(cat("H ", shape.heads, " d ", shape.head_dim, " window ", shape.window, ", ", queries[0],
                             " of ", keys[0]));
            Problem p(shape, queries, at::kBFloat16, keys);
            check(p, CudaForm::packed);
        }
}

// The same of long sequences that are cut evenly: each chunk is calls of the dense form.
TEST_F(AttentionGpu, ChunksOfLongSequences) {
    plans_keys = true;
    const auto chunks = [&](const AttentionShape& shape, const std::vector<int32_t>& queries,
                            const std::vector<int32_t>& keys, at::ScalarType type = at::kBFloat16) {
        SCOPED_TRACE(cat(c10::toString(type), " H ", shape.heads, " K ", shape.kv_heads, " d ", shape.head_dim,
                         " window ", shape.window, ", ", queries[0], " of ", keys[0]));
        Problem p(shape, queries, type, keys);
        check(p, CudaForm::chunks);
    };
    for (const AttentionShape& shape :
         {shape_of(2, 1, 128), shape_of(2, 2, 64), shape_of(2, 1, 96, 700), shape_of(2, 1, 128, 2500)}) {
        chunks(shape, {1024, 1024}, {1024, 4096});  // 4096 tokens on two ranks: the first's,
        chunks(shape, {1024, 1024}, {2048, 3072});  // and the second's
    }
    chunks(shape_of(2, 1, 128), {1024, 1024}, {2048, 3072}, at::kHalf);
    chunks(shape_of(4, 2, 128), {1152, 1152, 1152, 1152}, {1152, 4608, 2304, 3456});
    Problem uneven(shape_of(2, 1, 128), {1024, 1024}, at::kBFloat16, {2048, 3073});
    check(uneven, CudaForm::packed);
}

TEST_F(AttentionGpu, StronglyNegativeScores) {
    // Every score is about -190: a key that should be hidden but is read as zeros would have weight exp(0 +
    // 190), infinite in fp32.
    const std::vector<std::vector<int32_t>> batches = {{256, 256}, {192, 64, 320}, {64}, {65, 1000, 63, 1}, {704, 100}};
    for (const std::vector<int32_t>& lengths : batches)
        for (const int64_t window : {0, 90}) {
            Problem p(shape_of(4, 2, 64, window), lengths, at::kBFloat16);
            p.q.mul_(0.1).add_(5.0);
            p.k.mul_(0.1).sub_(4.75);
            plan(p);
            const Result expected = reference(p);
            const CudaChoice choice = choose_backward(*ctx, p.shape, p.segments, p.backward());
            EXPECT_EQ(choice.kernels, p.segments.max_q == 256 ? CudaForm::dense : CudaForm::packed);
            for (const CudaChoice& c : {choice, CudaChoice{}}) {
                SCOPED_TRACE(name_of_form(c.kernels));
                const Result r = run(p, c);
                const Tolerance allowed = tolerance(at::kBFloat16, c.kernels, p.shape.head_dim);
                expect_close("out", r.out, expected.out, p.segments.q_offsets, allowed);
                expect_close("dv", r.dv, expected.dv, p.segments.k_offsets, allowed);
                // Nearly parallel keys: dq and dk are differences of large terms, of which bf16 leaves the
                // size only.
                EXPECT_TRUE(r.dq.isfinite().all().item<bool>() && r.dk.isfinite().all().item<bool>());
            }
        }
}

TEST_F(AttentionGpu, PackedPlansServeSmallerBatches) {
    // One plan, made for 4096 tokens in 16 segments of up to 1024, then batches below it: as in a run with
    // varying rows.
    Problem largest(shape_of(8, 2, 128), std::vector<int32_t>(4, 1024), at::kBFloat16);
    const int64_t bytes = attention_workspace(largest.shape, at::kBFloat16, ctx->device(), false, 4096, 16, 1024);
    ctx->workspace = at::empty({bytes}, at::TensorOptions(at::kByte).device(at::kCUDA));
    for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{1000, 7, 300},
                                                {513},
                                                {1, 2, 3},
                                                {1023, 1022, 1021, 1020},
                                                {30},
                                                std::vector<int32_t>(16, 255)}) {
        SCOPED_TRACE(cat(lengths.size(), " segments, the first of ", lengths[0], "; workspace ", bytes));
        Problem p(largest.shape, lengths, at::kBFloat16);
        const CudaChoice choice = choose_backward(*ctx, p.shape, p.segments, p.backward());
        EXPECT_EQ(name_of_form(choice.kernels), std::string("packed"));
        expect_close(p, run(p, choice), reference(p), tolerance(at::kBFloat16, CudaForm::packed));
    }
}

TEST_F(AttentionGpu, LongSegmentsAgreeWithThePortableKernels) {
    for (const std::vector<int32_t>& lengths :
         {std::vector<int32_t>{4096, 4096}, std::vector<int32_t>{6000, 11, 1900, 281}})
        for (const int64_t window : {0, 1500}) {
            Problem p(shape_of(8, 2, 128, window), lengths, at::kBFloat16);
            plan(p);
            const CudaChoice choice = choose_forward(*ctx, p.shape, p.segments, p.forward());
            EXPECT_EQ(name_of_form(choice.kernels), std::string(p.segments.uniform ? "dense" : "packed"));
            const Result portable = run(p, {});
            expect_close(p, run(p, choice), portable, tolerance(at::kBFloat16, choice.kernels));
        }
}

TEST_F(AttentionGpu, PortableForm) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf})
        for (const AttentionShape& shape : {shape_of(4, 2, 5), shape_of(3, 1, 64), shape_of(4, 2, 100, 33),
                                            shape_of(2, 2, 128), shape_of(2, 1, 193), shape_of(2, 1, 256, 70)})
            for (const std::vector<int32_t>& lengths :
                 {std::vector<int32_t>{130}, std::vector<int32_t>{64, 64}, std::vector<int32_t>{1, 300, 2, 17, 1}}) {
                SCOPED_TRACE(cat(c10::toString(type), " d ", shape.head_dim, " window ", shape.window, ", ",
                                 lengths.size(), " segments"));
                Problem p(shape, lengths, type);
                plan(p);
                expect_close(p, run(p, {}), reference(p), tolerance(type, CudaForm::portable, shape.head_dim));
            }
}

/// A table may give either direction of what cuDNN serves to our own kernels.
TEST_F(AttentionGpu, TheTablesEngineRuns) {
    for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{256, 256}, std::vector<int32_t>{300, 17, 64}}) {
        Problem p(shape_of(8, 2, 128), lengths, at::kBFloat16);
        plan(p);
        const Result expected = reference(p);
        const CudaChoice own = choose_forward(*ctx, p.shape, p.segments, p.forward());
        ASSERT_NE(own.kernels, CudaForm::portable);
        for (const spec::ProductForm form : {spec::ProductForm::nt, spec::ProductForm::nn}) {
            const bool forward = form == spec::ProductForm::nt;
            SCOPED_TRACE(cat(name_of_form(own.kernels), forward ? ", own forward" : ", own backward"));
            auto table = std::make_shared<spec::KernelTable>();
            table->choices = {{.op = spec::KernelOperator::attention,
                               .form = form,
                               .n = {0, p.segments.max_k},
                               .k = {128, 128},
                               .kernel = spec::KernelSource::portable}};
            Context by_table(ctx->device(), table);
            by_table.workspace = ctx->workspace;
            const CudaChoice there = choose_forward(by_table, p.shape, p.segments, p.forward()),
                             back = choose_backward(by_table, p.shape, p.segments, p.backward());
            EXPECT_EQ(there.kernels, forward ? CudaForm::portable : own.kernels);
            EXPECT_EQ(back.kernels, forward ? own.kernels : CudaForm::portable);
            EXPECT_EQ(there.lse_order, back.lse_order);
            p.clear();
            attention_cuda_forward(by_table, p.shape, p.segments, p.forward(), there);
            attention_cuda_backward(by_table, p.shape, p.segments, p.backward(), back);
            expect_close(p, keep(p), expected, tolerance(at::kBFloat16, own.kernels));
        }
    }
}

/// Every head of 16 bits that FlashAttention-2 would take has tensor cores; needs no GPU.
TEST(AttentionForms, TensorCoresServeHeadsOf16Bits) {
    for (int head_dim = 1; head_dim <= 264; ++head_dim) {
        const bool serves = head_dim % 8 == 0 && head_dim <= 256;
        EXPECT_EQ(kernels::attention_mma_serves(spec::DType::bf16, head_dim), serves) << head_dim;
        EXPECT_EQ(kernels::attention_mma_serves(spec::DType::f16, head_dim), serves) << head_dim;
        EXPECT_FALSE(kernels::attention_mma_serves(spec::DType::f32, head_dim)) << head_dim;
    }
}

bool equal(const Result& a, const Result& b) {
    return at::equal(a.out, b.out) && at::equal(a.dq, b.dq) && at::equal(a.dk, b.dk) && at::equal(a.dv, b.dv);
}

// The portable form's kernels for 16-bit rows: lengths around their tiles (16, 32, 64, 128), padded head_dims, groups
// of query heads; and the same bits whenever they run.
TEST_F(AttentionGpu, PortableFormByTensorCores) {
    const std::vector<std::pair<std::vector<int32_t>, std::vector<int32_t>>> batches = {
        {{1, 7, 63, 65, 129, 200}, {}}, {{128, 64, 256, 127}, {}}, {{5, 140, 1, 128}, {37, 300, 300, 192}}};
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf})
        for (const AttentionShape& shape :
             {shape_of(2, 2, 64), shape_of(4, 1, 64, 33), shape_of(8, 1, 64), shape_of(2, 2, 128), shape_of(8, 2, 128),
              shape_of(8, 1, 128, 100), shape_of(4, 1, 128, 1), shape_of(2, 1, 128, 64), shape_of(4, 2, 96),
              shape_of(2, 1, 72, 50), shape_of(2, 2, 16), shape_of(2, 1, 112), shape_of(2, 2, 256), shape_of(8, 1, 256),
              shape_of(4, 2, 256, 100), shape_of(2, 1, 192), shape_of(4, 1, 136, 33)})
            for (const auto& [queries, keys] : batches) {
                SCOPED_TRACE(cat(c10::toString(type), " H ", shape.heads, " K ", shape.kv_heads, " d ", shape.head_dim,
                                 " window ", shape.window, ", ", queries[0], " first"));
                Problem p(shape, queries, type, keys);
                plan(p);
                const Result first = run(p, {});
                expect_close(p, first, reference(p), tolerance(type, CudaForm::portable, shape.head_dim));
                EXPECT_TRUE(equal(run(p, {}), first));
            }
}

TEST_F(AttentionGpu, MoreKeysThanQueries) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
        for (const int64_t window : {0, 50}) {
            Problem chunk(shape_of(8, 2, 64, window), {5, 40, 1}, type, {37, 200, 300});
            check(chunk, CudaForm::portable);
            Problem decode(shape_of(8, 2, 128, window), {1, 1, 1}, type, {3, 1000, 129});
            check(decode, CudaForm::portable);
            Problem odd(shape_of(2, 1, 200, window), {1}, type, {77});
            check(odd, CudaForm::portable);
        }
}

TEST_F(AttentionGpu, UnalignedTensorsFallBack) {
    Problem p(shape_of(4, 2, 64), {256, 256}, at::kBFloat16);
    plan(p);
    const at::Tensor shifted = at::empty({512 * 512 + 1}, p.q.options());
    p.q = shifted.narrow(0, 1, 512 * 256).view({512, 4, 64});
    p.q.copy_(at::randn({512, 4, 64}, p.q.options()));
    const Result expected = reference(p);
    p.clear();
    attention_forward(*ctx, p.shape, p.segments, p.q, p.k, p.v, p.o, p.lse);
    attention_backward(*ctx, p.shape, p.segments, p.go, p.q, p.k, p.v, p.o, p.lse, p.dq, p.dk, p.dv);
    expect_close(p, keep(p), expected, tolerance(at::kBFloat16, CudaForm::portable));
}

TEST_F(AttentionGpu, CudnnServes16BitRowsOfWholeVectors) {
    const at::Device device = ctx->device();
    EXPECT_TRUE(cudnn_serves(shape_of(32, 8, 128), at::kBFloat16, device));
    EXPECT_FALSE(cudnn_serves(shape_of(32, 8, 128), at::kFloat, device));
    EXPECT_FALSE(cudnn_serves(shape_of(32, 8, 100), at::kBFloat16, device));
}

TEST_F(AttentionGpu, DeterministicRepeatsBitForBit) {
    ctx->deterministic = true;
    for (const std::vector<int32_t>& lengths : {std::vector<int32_t>(4, 512), std::vector<int32_t>{700, 3, 129}}) {
        Problem p(shape_of(8, 2, 128), lengths, at::kBFloat16);
        plan(p);
        const CudaChoice forward = choose_forward(*ctx, p.shape, p.segments, p.forward());
        ::testing::internal::CaptureStderr();
        const CudaChoice backward = choose_backward(*ctx, p.shape, p.segments, p.backward());
        EXPECT_EQ(::testing::internal::GetCapturedStderr().find("slower"), std::string::npos);
        EXPECT_EQ(forward.lse_order, backward.lse_order);
        EXPECT_EQ(name_of_form(backward.kernels), std::string(p.segments.uniform ? "dense" : "portable"));
        Result first;
        for (int i = 0; i < 4; ++i) {
            p.clear();
            attention_cuda_forward(*ctx, p.shape, p.segments, p.forward(), forward);
            attention_cuda_backward(*ctx, p.shape, p.segments, p.backward(), backward);
            const Result r = keep(p);
            if (i == 0) {
                first = r;
                expect_close(p, r, reference(p), tolerance(at::kBFloat16, CudaForm::dense));
            }
            EXPECT_TRUE(equal(r, first));
        }
    }
}

TEST_F(AttentionGpu, DeterministicHasTheSameBitsInPieces) {
    ctx->deterministic = true;
    const AttentionShape shape = shape_of(8, 2, 128), one_kv_head = shape_of(4, 1, 128);
    Problem p(shape, std::vector<int32_t>(5, 512), at::kBFloat16);
    const auto scratch = [&](const AttentionShape& of, int64_t rows) {
        return attention_workspace(of, at::kBFloat16, ctx->device(), true, rows * 512, rows, 512);
    };
    Result whole;
    for (const int64_t bytes : {scratch(shape, 5), scratch(shape, 3), scratch(shape, 1), scratch(one_kv_head, 1)}) {
        SCOPED_TRACE(bytes);
        plan(p);
        ctx->workspace = ctx->workspace.narrow(0, 0, bytes);
        ASSERT_EQ(name_of_form(choose_backward(*ctx, p.shape, p.segments, p.backward()).kernels), std::string("dense"));
        const Result r = run(p, {CudaForm::dense, CudaForm::dense});
        if (!whole.out.defined()) {
            whole = r;
            expect_close(p, r, reference(p), tolerance(at::kBFloat16, CudaForm::dense));
        }
        EXPECT_TRUE(equal(r, whole));
    }
    ctx->workspace = ctx->workspace.narrow(0, 0, scratch(one_kv_head, 1) / 2);
    EXPECT_EQ(name_of_form(choose_backward(*ctx, p.shape, p.segments, p.backward()).kernels), std::string("portable"));
}

TEST_F(AttentionGpu, DeterministicSaysWhereItIsSlow) {
    ctx->deterministic = true;
    Problem p(shape_of(2, 1, 256), {300, 3, 129}, at::kBFloat16);
    plan(p);
    EXPECT_EQ(choose_backward(*ctx, p.shape, p.segments, p.backward()).kernels, CudaForm::portable);
    GTEST_FLAG_SET(death_test_style, "threadsafe");  // told once a process: asked in one of its own
    EXPECT_EXIT(
        {
            choose_backward(*ctx, p.shape, p.segments, p.backward());
            std::_Exit(0);
        },
        ::testing::ExitedWithCode(0), "own kernels on tensor cores serve the backward pass of attention");
}

TEST_F(AttentionGpu, WithoutStatistics) {
    for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{256, 256}, std::vector<int32_t>{300, 20}}) {
        Problem p(shape_of(4, 2, 64), lengths, at::kBFloat16);
        plan(p);
        attention_forward(*ctx, p.shape, p.segments, p.q, p.k, p.v, p.o, p.lse);
        const at::Tensor with = p.o.clone();
        p.clear();
        attention_forward(*ctx, p.shape, p.segments, p.q, p.k, p.v, p.o, {});
        EXPECT_TRUE(at::equal(p.o, with));
    }
}

TEST_F(AttentionGpu, AllocatesNothingAndReplaysInAGraph) {
    for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{512, 512}, std::vector<int32_t>{700, 3, 129}}) {
        Problem p(shape_of(8, 2, 128), lengths, at::kBFloat16);
        plan(p);
        const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
        const c10::cuda::CUDAStreamGuard guard(stream);
        const auto both = [&] {
            attention_forward(*ctx, p.shape, p.segments, p.q, p.k, p.v, p.o, p.lse);
            attention_backward(*ctx, p.shape, p.segments, p.go, p.q, p.k, p.v, p.o, p.lse, p.dq, p.dk, p.dv);
        };
        cudaDeviceSynchronize();
        both();
        const Result expected = keep(p);
        const auto allocations = [] {
            return c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocation[0].allocated;
        };
        const int64_t before = allocations();
        both();
        EXPECT_EQ(allocations(), before);
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t replay = nullptr;
        ASSERT_EQ(cudaStreamBeginCapture(stream.stream(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
        both();
        ASSERT_EQ(cudaStreamEndCapture(stream.stream(), &graph), cudaSuccess);
        ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
        p.clear();
        ASSERT_EQ(cudaGraphLaunch(replay, stream.stream()), cudaSuccess);
        cudaStreamSynchronize(stream.stream());
        const Result r = keep(p);
        EXPECT_TRUE(at::equal(r.out, expected.out));
        expect_close(p, r, expected, tolerance(at::kBFloat16, CudaForm::dense));  // dq is summed in an order of its own
        cudaGraphExecDestroy(replay);
        cudaGraphDestroy(graph);
    }
}

double milliseconds(const Context& ctx, int repeats, const std::function<void()>& work) {
    const auto stream = static_cast<cudaStream_t>(ctx.stream());
    cudaEvent_t start, stop;
    cudaEventCreate(&start), cudaEventCreate(&stop);
    work(), work();
    cudaEventRecord(start, stream);
    for (int i = 0; i < repeats; ++i) work();
    cudaEventRecord(stop, stream);
    cudaEventSynchronize(stop);
    float ms = 0;
    cudaEventElapsedTime(&ms, start, stop);
    return ms / repeats;
}

/// Run by hand, as the next one: one row of so many tokens on one GPU, and each rank's chunks of it on two and four.
TEST_F(AttentionGpu, DISABLED_SpeedOfChunks) {
    plans_keys = true;
    for (const int32_t length : {16384, 65536, 131072})
        for (const int32_t ranks : {1, 2, 4})
            for (int32_t rank = 0; rank < ranks; ++rank) {
                c10::cuda::CUDACachingAllocator::emptyCache();
                const int32_t chunk = length / (2 * ranks), mirror = 2 * ranks - 1 - rank;
                const std::vector<int32_t> queries = ranks == 1 ? std::vector{length} : std::vector{chunk, chunk},
                                           keys = ranks == 1 ? queries
                                                             : std::vector{chunk * (rank + 1), chunk * (mirror + 1)};
                Problem p(shape_of(32, 8, 128), queries, at::kBFloat16, keys);
                plan(p);
                const double flops = 4.0 * 32 * 128 * 0.5 * length * length / ranks;
                const CudaChoice choice = choose_backward(*ctx, p.shape, p.segments, p.backward());
                const double forward = milliseconds(
                    *ctx, 3, [&] { attention_cuda_forward(*ctx, p.shape, p.segments, p.forward(), choice); });
                const double backward = milliseconds(
                    *ctx, 3, [&] { attention_cuda_backward(*ctx, p.shape, p.segments, p.backward(), choice); });
                std::cout << length << " tokens, rank " << rank << " of " << ranks << ": "
                          << name_of_form(choice.kernels) << ", workspace " << ctx->workspace.numel() / 1048576
                          << " MiB; forward " << forward << " ms, " << flops / forward * 1e-9 << " TF/s; backward "
                          << backward << " ms, " << 2.5 * flops / backward * 1e-9 << " TF/s\n";
            }
}

/// Run by hand: --gtest_also_run_disabled_tests --gtest_filter='AttentionGpu.DISABLED_Speed'; UNSLOTH_TEST_HEAD_DIM
/// (128), UNSLOTH_TEST_DETERMINISTIC=1.
TEST_F(AttentionGpu, DISABLED_Speed) {
    struct Mix {
        const char* name;
        std::vector<int32_t> lengths;
    };
    std::vector<int32_t> mixed, tiny(512, 32);
    for (int i = 0, left = 16384; left > 0; ++i) {
        mixed.push_back(std::min(left, 100 + (i * 977) % 1900));
        left -= mixed.back();
    }
    const std::vector<Mix> mixes = {{"8 x 2048", std::vector<int32_t>(8, 2048)},
                                    {"9 x 2048", std::vector<int32_t>(9, 2048)},
                                    {"2 x 8192", {8192, 8192}},
                                    {"1 x 16384", {16384}},
                                    {"2 x 2048", {2048, 2048}},
                                    {"8 of 2047 or 2048", {2047, 2048, 2047, 2048, 2047, 2048, 2047, 2048}},
                                    {"mixed 100 to 2000", mixed},
                                    {"512 x 32", tiny},
                                    {"8000 and 100 of 80", [] {
                                         std::vector<int32_t> x(101, 80);
                                         x[0] = 8000;
                                         return x;
                                     }()}};
    const char* const asked = std::getenv("UNSLOTH_TEST_HEAD_DIM");
    ctx->deterministic = std::getenv("UNSLOTH_TEST_DETERMINISTIC") != nullptr;
    for (const Mix& mix : mixes) {
        Problem p(shape_of(32, 8, asked != nullptr ? std::atoi(asked) : 128), mix.lengths, at::kBFloat16);
        const auto started = std::chrono::steady_clock::now();
        plan(p);
        const double planning =
            std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - started).count();
        double pairs = 0;
        for (const int32_t n : mix.lengths) pairs += 0.5 * n * n;
        const double flops = 4.0 * static_cast<double>(p.shape.heads * p.shape.head_dim) * pairs;
        const CudaChoice choice = choose_backward(*ctx, p.shape, p.segments, p.backward());
        std::cout << mix.name << ": " << p.segments.count() << " segments, " << p.t << " tokens, workspace "
                  << ctx->workspace.numel() / 1048576 << " MiB, planned in " << planning << " ms\n";
        for (const CudaChoice& c : {choice, CudaChoice{}}) {
            const double forward =
                milliseconds(*ctx, 20, [&] { attention_cuda_forward(*ctx, p.shape, p.segments, p.forward(), c); });
            const double backward =
                milliseconds(*ctx, 20, [&] { attention_cuda_backward(*ctx, p.shape, p.segments, p.backward(), c); });
            std::cout << "  " << name_of_form(c.kernels) << ": forward " << forward << " ms, " << flops / forward * 1e-9
                      << " TF/s; backward " << backward << " ms, " << 2.5 * flops / backward * 1e-9 << " TF/s\n";
            if (choice.kernels == CudaForm::portable) break;
        }
    }
}

}  // namespace
}  // namespace unsloth::ops
