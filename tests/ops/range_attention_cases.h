// Cases of attention of ranges of queries to ranges of keys, forward and backward.
#pragma once

#include "ops/op_cases.h"
#include "unsloth/ops/range_attention.h"

namespace unsloth::testing {

/// [heads, rows, d] of a range's rows, each kv head as often as heads share it.
inline at::Tensor range_rows(const at::Tensor& x, int32_t begin, int32_t end, int64_t group) {
    return x.narrow(0, begin, end - begin).transpose(0, 1).repeat_interleave(group, 0);
}

/// q, k and v as columns of wider rows; queries outside of ranges give zeros and get none.
inline OpCase range_attention_case(const std::vector<ops::AttentionRange>& ranges, int64_t queries, int64_t keys,
                                   int64_t heads, int64_t kv_heads, int64_t d, at::ScalarType dtype) {
    const int64_t group = heads / kv_heads;
    const double scale = 1.0 / std::sqrt(static_cast<double>(d));
    const ops::AttentionShape shape{.heads = heads, .kv_heads = kv_heads, .head_dim = d, .scale = scale};
    OpCase c;
    c.name = "range_attention " + case_name(queries, keys, ranges.size(), heads, kv_heads, d, c10::toString(dtype));
    const auto poisoned = [&](int64_t rows, int64_t of) {
        return at::full({rows, of, d}, NAN, at::TensorOptions(dtype));
    };
    c.args = {{"q", (at::randn({queries, heads + 1, d}) * 2).to(dtype).narrow(1, 0, heads)},
              {"kv", (at::randn({keys, 2 * kv_heads, d}) * 2).to(dtype)},
              {"dout", at::randn({queries, heads, d}).to(dtype)},
              {"out", poisoned(queries, heads), Role::output},
              {"dq", poisoned(queries, heads), Role::output},
              {"dk", poisoned(keys, kv_heads), Role::output},
              {"dv", poisoned(keys, kv_heads), Role::output}};
    c.run = [=](ops::Context& ctx, const Tensors& a) {
        const std::vector<at::Tensor> kv = a[1].chunk(2, 1);
        const at::Tensor lse = at::empty({heads, queries}, at::TensorOptions(at::kFloat).device(ctx.device()));
        ops::range_attention_forward(ctx, shape, ranges, a[0], kv[0], kv[1], a[3], lse);
        ops::range_attention_backward(ctx, shape, ranges, a[2], a[0], kv[0], kv[1], a[3], lse, a[4], a[5], a[6]);
    };
    c.expected = [=](const Tensors& a) {
        const std::vector<at::Tensor> kv = a[1].chunk(2, 1);
        at::Tensor out = at::zeros_like(a[3]), dq = at::zeros_like(a[4]), dk = at::zeros_like(a[5]),
                   dv = at::zeros_like(a[6]);
        for (const ops::AttentionRange& range : ranges) {
            const auto of_queries = [&](const at::Tensor& x) { return range_rows(x, range.q_begin, range.q_end, 1); };
            const auto of_keys = [&](const at::Tensor& x) { return range_rows(x, range.k_begin, range.k_end, group); };
            const auto summed = [&](const at::Tensor& x) {
                return x.unflatten(0, {kv_heads, group}).sum(1).transpose(0, 1);
            };
            const auto rows = [&](const at::Tensor& x) {
                return x.narrow(0, range.q_begin, range.q_end - range.q_begin);
            };
            const auto key_rows = [&](const at::Tensor& x) {
                return x.narrow(0, range.k_begin, range.k_end - range.k_begin);
            };
            const at::Tensor q = of_queries(a[0]), k = of_keys(kv[0]), v = of_keys(kv[1]), dout = of_queries(a[2]);
            const at::Tensor p = at::softmax(scale * at::matmul(q, k.transpose(1, 2)), -1), o = at::matmul(p, v);
            const at::Tensor ds =
                scale * p * (at::matmul(dout, v.transpose(1, 2)) - (dout * o).sum(-1, /*keepdim=*/true));
            rows(out).copy_(o.transpose(0, 1));
            rows(dq).copy_(at::matmul(ds, k).transpose(0, 1));
            key_rows(dk).add_(summed(at::matmul(ds.transpose(1, 2), q)));
            key_rows(dv).add_(summed(at::matmul(p.transpose(1, 2), dout)));
        }
        return Tensors{out, dq, dk, dv};
    };
    // LibTorch's kernels round weights to the type, and the backward pass reads the rounded output.
    // A query of one key has no gradient: terms of order 1, rounded, cancel.
    if (dtype == at::kFloat) c.tolerance = Tolerance{1e-5, 1e-5, 1e-5};
    if (dtype == at::kHalf) c.tolerance = Tolerance{1.0 / 128, 1.0 / 128, 1e-5};
    if (dtype == at::kBFloat16) c.tolerance = Tolerance{1.0 / 16, 1.0 / 16, 1e-4};
    return c;
}

inline std::vector<OpCase> range_attention_cases(uint64_t seed) {
    at::manual_seed(seed);
    std::vector<OpCase> cases;
    for (const at::ScalarType dtype : compute_dtypes) {
        cases.push_back(range_attention_case({{0, 5, 0, 7}, {5, 7, 0, 5}}, 7, 7, 2, 2, 16, dtype));
        // A row's text before its image sees all tiles, a row without images none, one behind two images both.
        cases.push_back(range_attention_case({{2, 4, 0, 40}, {4, 9, 0, 20}, {12, 13, 40, 50}, {13, 20, 40, 70}}, 21, 70,
                                             4, 2, 16, dtype));
        cases.push_back(range_attention_case({{0, 3, 1, 2}}, 4, 3, 3, 1, 12, dtype));
        // A tower's images, of lengths alike and not.
        cases.push_back(range_attention_case(ops::own_ranges({0, 4, 8, 12, 14, 15}), 15, 15, 3, 3, 80, dtype));
        cases.push_back(range_attention_case(ops::own_ranges({0, 70, 71}), 71, 71, 1, 1, 72, dtype));
    }
    return cases;
}

/// Long enough for cuDNN: lengths of no round number, keys that two ranges share, queries in no range, and ranges of
/// one length that follow one another.
inline std::vector<OpCase> long_range_attention_cases(uint64_t seed) {
    at::manual_seed(seed);
    std::vector<OpCase> cases;
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
        cases.push_back(range_attention_case({{3, 260, 0, 900}, {300, 811, 100, 613}}, 820, 1001, 4, 2, 128, dtype));
        cases.push_back(range_attention_case(ops::own_ranges({0, 321, 642, 898}), 898, 898, 3, 3, 80, dtype));
        cases.push_back(range_attention_case({{0, 256, 0, 2050}, {256, 300, 5, 600}}, 300, 2051, 2, 2, 72, dtype));
        cases.push_back(range_attention_case({{0, 1030, 7, 263}}, 1031, 270, 2, 1, 64, dtype));
    }
    return cases;
}

}  // namespace unsloth::testing
