// Attention on the CPU: per segment and block of queries, plain matrix products in fp32 over the keys that
// the block sees, so that memory is bounded whatever the length. The backward is written out: softmax's
// gradient from lse and delta = rowsum(dout * out).
//
// Legend: c kv heads of a chunk, g heads that share one, r rows of the block, n keys of the block, d
// head_dim.
#include <algorithm>
#include <limits>

#include "ops/attention_impl.h"

namespace unsloth::ops {
namespace {

constexpr int64_t block_rows = 256;
/// Scores held at once, in elements; kv heads are taken together as far as this allows.
constexpr int64_t most_scores = int64_t{4} << 20;

/// A block of queries of one segment, the keys it sees, and a chunk of kv heads.
struct Block {
    int64_t q_first, rows;  ///< in the flat query tokens
    int64_t k_first, keys;  ///< in the flat key tokens
    int64_t kv_first, chunk, group;
    at::Tensor hidden_rn;  ///< true where a query does not see a key
};

/// Calls visit(block, first chunk of the segment?, segment) for all blocks.
template <class Visit>
void for_each_block(const AttentionShape& shape, int64_t q_begin, int64_t q_count, int64_t k_begin, int64_t k_count,
                    const Visit& visit) {
    const int64_t shift = k_count - q_count, group = shape.heads / shape.kv_heads;
    for (int64_t first = 0; first < q_count; first += block_rows) {
        const int64_t rows = std::min(block_rows, q_count - first);
        const int64_t low = shape.window > 0 ? std::max<int64_t>(0, first + shift - shape.window + 1) : 0;
        const int64_t high = first + rows + shift;
        const at::Tensor position_r1 = at::arange(first + shift, first + shift + rows, at::kLong).unsqueeze(1);
        const at::Tensor key_1n = at::arange(low, high, at::kLong).unsqueeze(0);
        at::Tensor hidden_rn = key_1n > position_r1;
        if (shape.window > 0) hidden_rn.logical_or_(key_1n <= position_r1 - shape.window);
        const int64_t most = std::max<int64_t>(1, most_scores / (group * rows * (high - low)));
        for (int64_t kv = 0; kv < shape.kv_heads; kv += most)
            visit(Block{q_begin + first, rows, k_begin + low, high - low, kv, std::min(most, shape.kv_heads - kv),
                        group, hidden_rn});
    }
}

at::ScalarType compute_type(const at::Tensor& x) {
    return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// The block's part of a query-sided tensor [T, H, d] as a view [c, g, r, d].
at::Tensor query_view(const at::Tensor& x_THd, const Block& b) {
    return x_THd.narrow(0, b.q_first, b.rows)
        .narrow(1, b.kv_first * b.group, b.chunk * b.group)
        .unflatten(1, {b.chunk, b.group})
        .permute({1, 2, 0, 3});
}

/// The same in the compute dtype as [c, g * r, d].
at::Tensor query_matrix(const at::Tensor& x_THd, const Block& b) {
    return query_view(x_THd, b).to(compute_type(x_THd)).reshape({b.chunk, b.group * b.rows, x_THd.size(2)});
}

/// The block's part of a key-sided tensor [S, K, d] in the compute dtype as [c, n, d].
at::Tensor key_matrix(const at::Tensor& x_SKd, const Block& b) {
    return x_SKd.narrow(0, b.k_first, b.keys).narrow(1, b.kv_first, b.chunk).permute({1, 0, 2}).to(compute_type(x_SKd));
}

/// The block's part of lse, stored [H, T], as a view [c, g, r].
at::Tensor lse_view(const at::Tensor& lse_HT, const Block& b) {
    return lse_HT.narrow(0, b.kv_first * b.group, b.chunk * b.group)
        .narrow(1, b.q_first, b.rows)
        .unflatten(0, {b.chunk, b.group});
}

at::Tensor lse_matrix(const at::Tensor& lse, int64_t heads, int64_t tokens) {
    return lse.view({-1}).narrow(0, 0, heads * tokens).view({heads, tokens});
}

/// scale q k^T with -inf where hidden, as [c, g, r, n].
at::Tensor masked_scores(const AttentionShape& shape, const at::Tensor& q, const at::Tensor& k, const Block& b) {
    at::Tensor scores = at::bmm(q, k.transpose(1, 2)).mul_(shape.scale).view({b.chunk, b.group, b.rows, b.keys});
    return scores.masked_fill_(b.hidden_rn, -std::numeric_limits<double>::infinity());
}

}  // namespace

void attention_cpu_forward(const AttentionShape& shape, const Segments& segments, const AttentionForward& args) {
    const int64_t tokens = args.q.size(0), d = shape.head_dim;
    const at::Tensor lse_HT = args.lse.defined() ? lse_matrix(args.lse, shape.heads, tokens) : at::Tensor();
    const auto forward = [&](const Block& b) {
        at::Tensor scores = masked_scores(shape, query_matrix(args.q, b), key_matrix(args.k, b), b);
        const at::Tensor lse_cgr = scores.logsumexp(-1);
        const at::Tensor p = scores.sub_(lse_cgr.unsqueeze(-1)).exp_();
        const at::Tensor out = at::bmm(p.view({b.chunk, b.group * b.rows, b.keys}), key_matrix(args.v, b));
        query_view(args.out, b).copy_(out.view({b.chunk, b.group, b.rows, d}));
        if (lse_HT.defined()) lse_view(lse_HT, b).copy_(lse_cgr);
    };
    for (int64_t s = 0; s < segments.count(); ++s) {
        const auto i = static_cast<std::size_t>(s);
        const int64_t q0 = segments.q_offsets[i], k0 = segments.k_offsets[i];
        for_each_block(shape, q0, segments.q_offsets[i + 1] - q0, k0, segments.k_offsets[i + 1] - k0, forward);
    }
}

void attention_cpu_backward(const AttentionShape& shape, const Segments& segments, const AttentionBackward& args) {
    const at::ScalarType type = compute_type(args.q);
    const int64_t tokens = args.q.size(0), d = shape.head_dim;
    const at::Tensor lse_HT = lse_matrix(args.lse, shape.heads, tokens);
    for (int64_t s = 0; s < segments.count(); ++s) {
        const auto i = static_cast<std::size_t>(s);
        const int64_t q0 = segments.q_offsets[i], k0 = segments.k_offsets[i], keys = segments.k_offsets[i + 1] - k0;
        // Several blocks of queries add to a key's gradients: summed in the compute dtype, rounded once at
        // the end.
        const at::Tensor dk_Knd = at::zeros({shape.kv_heads, keys, d}, args.q.options().dtype(type));
        const at::Tensor dv_Knd = at::zeros_like(dk_Knd);
        const auto backward = [&](const Block& b) {
            const at::Tensor q = query_matrix(args.q, b), k = key_matrix(args.k, b), dout = query_matrix(args.dout, b);
            const at::Tensor delta = (dout * query_matrix(args.out, b)).sum(-1, /*keepdim=*/true);
            at::Tensor p = masked_scores(shape, q, k, b).sub_(lse_view(lse_HT, b).unsqueeze(-1)).exp_();
            p = p.view({b.chunk, b.group * b.rows, b.keys});
            const auto keys_of = [&](const at::Tensor& x) {
                return x.narrow(0, b.kv_first, b.chunk).narrow(1, b.k_first - k0, b.keys);
            };
            keys_of(dv_Knd).add_(at::bmm(p.transpose(1, 2), dout));
            const at::Tensor dp = at::bmm(dout, key_matrix(args.v, b).transpose(1, 2));
            const at::Tensor ds = p.mul_(dp.sub_(delta)).mul_(shape.scale);
            query_view(args.dq, b).copy_(at::bmm(ds, k).view({b.chunk, b.group, b.rows, d}));
            keys_of(dk_Knd).add_(at::bmm(ds.transpose(1, 2), q));
        };
        for_each_block(shape, q0, segments.q_offsets[i + 1] - q0, k0, keys, backward);
        args.dk.narrow(0, k0, keys).copy_(dk_Knd.permute({1, 0, 2}));
        args.dv.narrow(0, k0, keys).copy_(dv_Knd.permute({1, 0, 2}));
    }
}

}  // namespace unsloth::ops
