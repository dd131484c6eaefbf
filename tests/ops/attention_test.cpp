// Attention on the CPU: against autograd in fp64, finite differences, and the equalities that segments,
// windows and caches promise.
#include "unsloth/ops/attention.h"

#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <numeric>

#include "unsloth/core/error.h"

namespace unsloth::ops {
namespace {

struct Case {
    std::vector<int32_t> q_lengths, k_lengths;  ///< k empty: as q
    AttentionShape shape;
    at::ScalarType type = at::kDouble;
};

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
    return s;
}

/// Inputs as views of one fused buffer [T, (H + 2K) d + 3] when q and k have the same tokens.
struct Problem {
    Segments segments;
    AttentionShape shape;
    at::Tensor q, k, v, dout;
    at::Tensor sinks;  ///< undefined: none

    explicit Problem(const Case& c)
        : segments(segments_of(c.q_lengths, c.k_lengths.empty() ? c.q_lengths : c.k_lengths)), shape(c.shape) {
        const int64_t t = segments.q_offsets.back(), s = segments.k_offsets.back(), d = shape.head_dim;
        const int64_t h = shape.heads, kv = shape.kv_heads;
        const auto options = at::TensorOptions(c.type);
        const auto heads_of = [&](const at::Tensor& x, int64_t first, int64_t n) {
            return x.narrow(1, first * d, n * d).unflatten(1, {n, d});
        };
        if (t == s) {
            const at::Tensor fused = at::randn({t, (h + 2 * kv) * d + 3}, at::kDouble).to(options);
            q = heads_of(fused, 0, h), k = heads_of(fused, h, kv), v = heads_of(fused, h + kv, kv);
        } else {
            q = at::randn({t, h, d}, at::kDouble).to(options);
            k = at::randn({s, kv, d}, at::kDouble).to(options), v = at::randn({s, kv, d}, at::kDouble).to(options);
        }
        dout = at::randn({t, h, d}, at::kDouble).to(options);
        if (shape.sinks) sinks = at::randn({h}, at::kDouble).mul(2).to(statistics_type());
    }

    at::ScalarType statistics_type() const { return q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }
};

struct Result {
    at::Tensor out, lse, dq, dk, dv;
};

Result run(const Problem& p, bool backward = true) {
    Context ctx(at::kCPU);
    const int64_t t = p.q.size(0), s = p.k.size(0), h = p.shape.heads, kv = p.shape.kv_heads, d = p.shape.head_dim;
    const auto options = p.q.options();
    // Wider rows than needed, filled with a sentinel that must survive.
    const at::Tensor out_full = at::full({t, h * d + 5}, 77.0, options);
    const at::Tensor grads = at::full({std::max(t, s), (h + 2 * kv) * d + 4}, 77.0, options);
    const auto heads_of = [&](const at::Tensor& x, int64_t rows, int64_t first, int64_t n) {
        return x.narrow(0, 0, rows).narrow(1, first * d, n * d).unflatten(1, {n, d});
    };
    Result r;
    r.out = heads_of(out_full, t, 0, h);
    r.lse = at::full({h, t}, 77.0, options.dtype(p.statistics_type()));
    attention_forward(ctx, p.shape, p.segments, p.q, p.k, p.v, r.out, r.lse, p.sinks);
    EXPECT_TRUE((out_full.narrow(1, h * d, 5) == 77.0).all().item<bool>());
    if (!backward) return r;
    r.dq = heads_of(grads, t, 0, h), r.dk = heads_of(grads, s, h, kv), r.dv = heads_of(grads, s, h + kv, kv);
    attention_backward(ctx, p.shape, p.segments, p.dout, p.q, p.k, p.v, r.out, r.lse, r.dq, r.dk, r.dv);
    EXPECT_TRUE((grads.narrow(1, (h + 2 * kv) * d, 4) == 77.0).all().item<bool>());
    return r;
}

/// The definition, in fp64 on whole matrices, one segment at a time; differentiable.
at::Tensor definition(const Problem& p, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    std::vector<at::Tensor> parts;
    const int64_t group = p.shape.heads / p.shape.kv_heads;
    for (std::size_t i = 0; i + 1 < p.segments.q_offsets.size(); ++i) {
        const int64_t q0 = p.segments.q_offsets[i], nq = p.segments.q_offsets[i + 1] - q0;
        const int64_t k0 = p.segments.k_offsets[i], nk = p.segments.k_offsets[i + 1] - k0;
        const at::Tensor qs = q.narrow(0, q0, nq).transpose(0, 1);
        const at::Tensor ks = k.narrow(0, k0, nk).repeat_interleave(group, 1).transpose(0, 1);
        const at::Tensor vs = v.narrow(0, k0, nk).repeat_interleave(group, 1).transpose(0, 1);
        at::Tensor seen = at::ones({nq, nk}, at::kBool).tril(nk - nq);
        if (p.shape.window > 0)
            seen = seen.logical_and(at::ones({nq, nk}, at::kBool).triu(nk - nq - p.shape.window + 1));
        const at::Tensor scores = at::matmul(qs, ks.transpose(1, 2)) * p.shape.scale;
        at::Tensor hidden = scores.masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
        if (p.sinks.defined())  // one more column, of which there is no value
            hidden = at::cat({hidden, p.sinks.to(at::kDouble).view({-1, 1, 1}).expand({p.shape.heads, nq, 1})}, -1);
        parts.push_back(at::matmul(hidden.softmax(-1).narrow(-1, 0, nk), vs).transpose(0, 1));
    }
    return at::cat(parts, 0);
}

Result oracle(const Problem& p) {
    c10::AutoGradMode with_gradients(true);
    const auto leaf = [](const at::Tensor& x) { return x.to(at::kDouble).detach().clone().set_requires_grad(true); };
    const at::Tensor q = leaf(p.q), k = leaf(p.k), v = leaf(p.v);
    Result r;
    r.out = definition(p, q, k, v);
    const auto gradients = torch::autograd::grad({r.out}, {q, k, v}, {p.dout.to(at::kDouble)});
    r.dq = gradients[0], r.dk = gradients[1], r.dv = gradients[2];
    return r;
}

/// Largest error relative to the expected tensor's largest element.
double error(const at::Tensor& actual, const at::Tensor& expected) {
    EXPECT_TRUE(actual.isfinite().all().item<bool>());
    return (actual.to(at::kDouble) - expected).abs().max().item<double>() / expected.abs().max().item<double>();
}

AttentionShape shape_of(int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t window = 0) {
    return {heads, kv_heads, head_dim, window, 1.0 / std::sqrt(static_cast<double>(head_dim))};
}
AttentionShape with_sinks(AttentionShape shape) {
    shape.sinks = true;
    return shape;
}

const std::vector<Case>& cases() {
    static const std::vector<Case> all = {
        {{1}, {}, shape_of(1, 1, 4)},
        {{7}, {}, shape_of(4, 2, 5)},               // odd head_dim
        {{16, 16, 16}, {}, shape_of(4, 4, 8)},      // uniform, no grouping
        {{3, 1, 40, 2, 1}, {}, shape_of(4, 1, 8)},  // one kv head
        {{300}, {}, shape_of(4, 2, 16)},            // more than a block of rows
        {{600, 5}, {}, shape_of(2, 1, 8, 100)},     // a window that begins inside a block
        {{20, 9}, {}, shape_of(4, 2, 8, 1)},        // a window of the position alone
        {{33, 12}, {}, shape_of(4, 2, 8, 7)},
        {{12}, {}, shape_of(2, 2, 8, 12)},          // a window as long as the segment
        {{4, 1, 6}, {9, 5, 6}, shape_of(4, 2, 8)},  // more keys than queries
        {{4, 1}, {30, 25}, shape_of(4, 2, 8, 6)},
    };
    return all;
}

void expect_autograds_results(const Case& c) {
    SCOPED_TRACE(cat("H ", c.shape.heads, " K ", c.shape.kv_heads, " d ", c.shape.head_dim, " window ", c.shape.window,
                     c.shape.sinks ? " sinks" : "", " first ", c.q_lengths[0]));
    const Problem p(c);
    const Result actual = run(p), expected = oracle(p);
    EXPECT_LT(error(actual.out, expected.out), 1e-12);
    EXPECT_LT(error(actual.dv, expected.dv), 1e-12);
    // A row that sees one key has no gradient of q: compare absolutely there.
    EXPECT_LT((actual.dq - expected.dq).abs().max().item<double>(), 1e-12);
    EXPECT_LT((actual.dk - expected.dk).abs().max().item<double>(), 1e-12);
}

TEST(Attention, MatchesAutogradInFp64) {
    at::manual_seed(1);
    for (const Case& c : cases()) expect_autograds_results(c);
}

TEST(Attention, SinksMatchAutogradInFp64) {
    at::manual_seed(8);
    for (Case c : cases()) {
        c.shape.sinks = true;
        expect_autograds_results(c);
    }
}

TEST(Attention, SinksWeighNothingOrAll) {
    at::manual_seed(9);
    Problem p({{12, 5}, {}, with_sinks(shape_of(4, 2, 8)), at::kFloat});
    Problem without = p;
    without.shape.sinks = false;
    without.sinks = at::Tensor();
    p.sinks.fill_(-1e30);  // weighs nothing
    EXPECT_TRUE(at::equal(run(p).out, run(without).out));
    p.sinks.fill_(1e4);  // leaves nothing to the keys
    const Result r = run(p);
    for (const at::Tensor& x : {r.out, r.dq, r.dk, r.dv}) EXPECT_EQ(x.abs().max().item<float>(), 0);
    p.sinks = at::Tensor();
    EXPECT_THROW(run(p), CheckError);
    without.sinks = at::zeros({4});
    EXPECT_THROW(run(without), CheckError);
}

TEST(Attention, LowPrecisionRoundsAtTheBoundaryOnly) {
    at::manual_seed(2);
    for (const auto& [type, unit] :
         {std::pair{at::kFloat, 2e-7}, std::pair{at::kBFloat16, 0x1p-9}, std::pair{at::kHalf, 0x1p-12}}) {
        Problem p({{50, 3, 270}, {}, shape_of(4, 2, 16), type});
        Context ctx(at::kCPU);
        const Result expected = oracle(p);
        const Result actual = run(p);
        EXPECT_LT(error(actual.out, expected.out), 4 * unit);
        // delta reads the rounded output, so the gradients see a few roundings of out.
        EXPECT_LT(error(actual.dq, expected.dq), 12 * unit);
        EXPECT_LT(error(actual.dk, expected.dk), 12 * unit);
        EXPECT_LT(error(actual.dv, expected.dv), 4 * unit);
    }
}

TEST(Attention, LogSumExp) {
    at::manual_seed(3);
    const Problem p({{5, 270}, {}, shape_of(4, 2, 8)});
    const Result r = run(p, false);
    const at::Tensor q = p.q.transpose(0, 1), k = p.k.repeat_interleave(2, 1).transpose(0, 1);
    at::Tensor scores = at::matmul(q, k.transpose(1, 2)) * p.shape.scale;
    at::Tensor seen = at::ones({275, 275}, at::kBool).tril();
    seen.narrow(0, 5, 270).narrow(1, 0, 5).fill_(false);
    scores = scores.masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
    EXPECT_LT((r.lse - scores.logsumexp(-1)).abs().max().item<double>(), 1e-12);
}

TEST(Attention, FiniteDifferences) {
    at::manual_seed(4);
    Problem p({{3, 5}, {}, shape_of(4, 2, 6, 4)});
    const Result r = run(p);
    const double step = 1e-5;
    const auto loss = [&] { return (run(p, false).out * p.dout).sum().item<double>(); };
    for (const auto& [x, gradient] : {std::pair{p.q, r.dq}, std::pair{p.k, r.dk}, std::pair{p.v, r.dv}}) {
        for (int64_t t = 0; t < x.size(0); ++t)
            for (int64_t c = 0; c < x.size(2); c += 2) {
                at::Tensor element = x[t][t % x.size(1)][c];
                const double value = element.item<double>();
                element.fill_(value + step);
                const double up = loss();
                element.fill_(value - step);
                const double down = loss();
                element.fill_(value);
                EXPECT_NEAR((up - down) / (2 * step), gradient[t][t % x.size(1)][c].item<double>(), 1e-8);
            }
    }
}

TEST(Attention, SegmentsAreSeparateRuns) {
    at::manual_seed(5);
    const Problem p({{17, 1, 260, 4}, {}, shape_of(4, 2, 8, 9), at::kFloat});
    const Result whole = run(p);
    for (std::size_t i = 0; i < 4; ++i) {
        const int32_t begin = p.segments.q_offsets[i], length = p.segments.q_offsets[i + 1] - begin;
        Problem one = p;
        one.segments = segments_of({length}, {length});
        for (at::Tensor* x : {&one.q, &one.k, &one.v, &one.dout}) *x = x->narrow(0, begin, length);
        const Result part = run(one);
        EXPECT_TRUE(at::equal(part.out, whole.out.narrow(0, begin, length)));
        EXPECT_TRUE(at::equal(part.dq, whole.dq.narrow(0, begin, length)));
        EXPECT_TRUE(at::equal(part.dk, whole.dk.narrow(0, begin, length)));
        EXPECT_TRUE(at::equal(part.dv, whole.dv.narrow(0, begin, length)));
    }
}

TEST(Attention, DecodeIsTheLastRow) {
    at::manual_seed(6);
    const Problem whole({{23, 300}, {}, shape_of(4, 2, 8, 11)});
    const at::Tensor expected = run(whole, false).out;
    Problem last = whole;
    last.segments = segments_of({1, 1}, {23, 300});
    last.q = at::stack({whole.q[22], whole.q[322]});
    last.dout = last.q;
    const at::Tensor actual = run(last, false).out;
    EXPECT_LT((actual[0] - expected[22]).abs().max().item<double>(), 1e-14);
    EXPECT_LT((actual[1] - expected[322]).abs().max().item<double>(), 1e-14);
}

TEST(Attention, WindowAsLongAsTheSegmentIsNone) {
    at::manual_seed(7);
    Problem p({{30}, {}, shape_of(2, 1, 8, 30), at::kFloat});
    const Result with = run(p);
    p.shape.window = 0;
    const Result without = run(p);
    EXPECT_TRUE(at::equal(with.out, without.out));
    EXPECT_TRUE(at::equal(with.dk, without.dk));
    p.shape.window = 29;  // the last query loses the first key
    EXPECT_FALSE(at::equal(run(p).out[29], without.out[29]));
    EXPECT_TRUE(at::equal(run(p).out[28], without.out[28]));
}

TEST(Attention, LargeScoresStayFinite) {
    Problem p({{64}, {}, shape_of(2, 1, 8), at::kFloat});
    p.q = p.q * 300;
    p.k = p.k * 300;
    const Result r = run(p);
    EXPECT_LT(error(r.out, oracle(p).out), 1e-3);
    for (const at::Tensor& x : {r.dq, r.dk, r.dv}) EXPECT_TRUE(x.isfinite().all().item<bool>());
}

TEST(Attention, SizesOnTheCpu) {
    const AttentionShape shape = shape_of(8, 2, 64);
    EXPECT_GT(attention_workspace(shape, at::kBFloat16, at::kCPU, true, 100, 4, 50), 2 * 8 * 50 * 50 * 4);
    EXPECT_EQ(attention_lse_elements(shape, 100), 800);
}

TEST(Attention, RefusesMismatches) {
    Context ctx(at::kCPU);
    const Problem p({{4, 3}, {}, shape_of(4, 2, 8), at::kFloat});
    const at::Tensor out = at::empty({7, 4, 8}), lse = at::empty({4, 7});
    const auto forward = [&](const AttentionShape& shape, const Segments& segments, const at::Tensor& o,
                             const at::Tensor& l) { attention_forward(ctx, shape, segments, p.q, p.k, p.v, o, l); };
    EXPECT_NO_THROW(forward(p.shape, p.segments, out, lse));
    EXPECT_NO_THROW(forward(p.shape, p.segments, out, {}));
    EXPECT_NO_THROW(forward(p.shape, p.segments, out, at::empty({100})));  // a buffer planned for more tokens
    EXPECT_THROW(forward(shape_of(3, 2, 8), p.segments, out, lse), CheckError);
    EXPECT_THROW(forward(shape_of(4, 2, 300), p.segments, out, lse), CheckError);
    EXPECT_THROW(forward(p.shape, segments_of({4, 4}, {4, 4}), out, lse), CheckError);
    EXPECT_THROW(forward(p.shape, segments_of({4, 3}, {4, 2}), out, lse),
                 CheckError);  // fewer keys than queries
    EXPECT_THROW(forward(p.shape, p.segments, at::empty({7, 4, 8}, at::kHalf), lse), CheckError);
    EXPECT_THROW(forward(p.shape, p.segments, at::empty({7, 8, 4}).transpose(1, 2), lse), CheckError);
    EXPECT_THROW(forward(p.shape, p.segments, out, at::empty({4, 6})), CheckError);
    EXPECT_THROW(attention_backward(ctx, p.shape, p.segments, out, p.q, p.k, p.v, out, {}, out, p.k, p.v), CheckError);
}

}  // namespace
}  // namespace unsloth::ops
