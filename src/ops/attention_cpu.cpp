// Attention on the CPU: per segment and block of queries, plain matrix products in fp32 over the keys that
// the block sees, so that memory is bounded whatever the length. The backward is written out: softmax's
// gradient from lse and delta = rowsum(dout * out). Outside the workspace only views are made.
//
// Legend: c kv heads of a chunk, g heads that share one, r rows of the block, n keys of the block, d
// head_dim.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/attention_impl.h"
#include "ops/cpu_scratch.h"

namespace unsloth::ops {
namespace {

using cpu::Scratch;

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

/// Row r is at position `position` + r, key n at `low` + n.
void hide(const at::Tensor& hidden_rn, int64_t position, int64_t low, int64_t window) {
    bool* row = hidden_rn.mutable_data_ptr<bool>();
    const int64_t keys = hidden_rn.size(1);
    for (int64_t p = position; p < position + hidden_rn.size(0); ++p, row += keys) {
        const int64_t first = window > 0 ? std::clamp<int64_t>(p - window + 1 - low, 0, keys) : 0;
        const int64_t last = std::clamp<int64_t>(p + 1 - low, first, keys);
        std::fill(row, row + first, true);
        std::fill(row + first, row + last, false);
        std::fill(row + last, row + keys, true);
    }
}

/// Calls visit(block, scratch) for all blocks of a segment.
template <class Visit>
void for_each_block(const AttentionShape& shape, const Scratch& scratch, int64_t q_begin, int64_t q_count,
                    int64_t k_begin, int64_t k_count, const Visit& visit) {
    const int64_t shift = k_count - q_count, group = shape.heads / shape.kv_heads;
    for (int64_t first = 0; first < q_count; first += block_rows) {
        const int64_t rows = std::min(block_rows, q_count - first);
        const int64_t low = shape.window > 0 ? std::max<int64_t>(0, first + shift - shape.window + 1) : 0;
        const int64_t high = first + rows + shift;
        Scratch of_rows = scratch;
        const at::Tensor hidden_rn = of_rows.take({rows, high - low}, at::kBool);
        hide(hidden_rn, first + shift, low, shape.window);
        const int64_t most = std::max<int64_t>(1, most_scores / (group * rows * (high - low)));
        for (int64_t kv = 0; kv < shape.kv_heads; kv += most) {
            Scratch of_block = of_rows;
            visit(Block{q_begin + first, rows, k_begin + low, high - low, kv, std::min(most, shape.kv_heads - kv),
                        group, hidden_rn},
                  of_block);
        }
    }
}

at::ScalarType compute_type(at::ScalarType type) {
    return type == at::kDouble ? at::kDouble : at::kFloat;
}

/// The block's part of a query-sided tensor [T, H, d] as a view [c, g, r, d].
at::Tensor query_view(const at::Tensor& x_THd, const Block& b) {
    return x_THd.narrow(0, b.q_first, b.rows)
        .narrow(1, b.kv_first * b.group, b.chunk * b.group)
        .unflatten(1, {b.chunk, b.group})
        .permute({1, 2, 0, 3});
}

/// The same in the compute dtype as [c, g * r, d].
at::Tensor query_matrix(const at::Tensor& x_THd, const Block& b, Scratch& scratch) {
    const at::Tensor view = query_view(x_THd, b);
    const at::ScalarType type = compute_type(x_THd.scalar_type());
    if (b.group == 1 && type == x_THd.scalar_type()) return view.squeeze(1);
    const at::Tensor copy = scratch.take(view.sizes(), type);
    copy.copy_(view);
    return copy.flatten(1, 2);
}

/// The block's part of a key-sided tensor [S, K, d] in the compute dtype as [c, n, d].
at::Tensor key_matrix(const at::Tensor& x_SKd, const Block& b, Scratch& scratch) {
    const at::Tensor view = x_SKd.narrow(0, b.k_first, b.keys).narrow(1, b.kv_first, b.chunk).permute({1, 0, 2});
    const at::ScalarType type = compute_type(x_SKd.scalar_type());
    if (type == x_SKd.scalar_type()) return view;
    const at::Tensor copy = scratch.take(view.sizes(), type);
    copy.copy_(view);
    return copy;
}

/// a b, as [c, rows of a, columns of b].
at::Tensor product(const at::Tensor& a, const at::Tensor& b, Scratch& scratch) {
    at::Tensor out = scratch.take({a.size(0), a.size(1), b.size(2)}, a.scalar_type());
    at::bmm_out(out, a, b);
    return out;
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
at::Tensor masked_scores(const AttentionShape& shape, const at::Tensor& q, const at::Tensor& k, const Block& b,
                         Scratch& scratch) {
    at::Tensor scores =
        product(q, k.transpose(1, 2), scratch).mul_(shape.scale).view({b.chunk, b.group, b.rows, b.keys});
    return scores.masked_fill_(b.hidden_rn, -std::numeric_limits<double>::infinity());
}

/// log(sum(exp(x))) of each row, as [c, g, r].
at::Tensor log_sum_exp(const at::Tensor& scores_cgrn, Scratch& scratch) {
    at::Tensor highest =
        scratch.take({scores_cgrn.size(0), scores_cgrn.size(1), scores_cgrn.size(2), 1}, scores_cgrn.scalar_type());
    at::Tensor lse = scratch.take(highest.sizes().slice(0, 3), scores_cgrn.scalar_type());
    at::Tensor exps = scratch.take(scores_cgrn.sizes(), scores_cgrn.scalar_type());
    at::amax_out(highest, scores_cgrn, {-1}, /*keepdim=*/true);
    // A row of infinities alone: their difference would be NaN.
    AT_DISPATCH_FLOATING_TYPES(highest.scalar_type(), "log_sum_exp", [&] {
        auto* values = highest.mutable_data_ptr<scalar_t>();
        for (int64_t i = 0; i < highest.numel(); ++i)
            if (std::isinf(values[i])) values[i] = 0;
    });
    at::sub_out(exps, scores_cgrn, highest);
    at::sum_out(lse, exps.exp_(), {-1}, /*keepdim=*/false);
    return lse.log_().add_(highest.squeeze(-1));
}

/// lse becomes log(exp(lse) + exp(sink)) of its head.
void add_sinks(const at::Tensor& sinks_H, const Block& b, const at::Tensor& lse_cgr) {
    AT_DISPATCH_FLOATING_TYPES(lse_cgr.scalar_type(), "add_sinks", [&] {
        const auto* sink = sinks_H.const_data_ptr<scalar_t>() + b.kv_first * b.group;
        auto* lse = lse_cgr.mutable_data_ptr<scalar_t>();
        for (int64_t head = 0; head < b.chunk * b.group; ++head)
            for (int64_t row = 0; row < b.rows; ++row, ++lse)
                *lse = std::max(*lse, sink[head]) + std::log1p(std::exp(-std::abs(*lse - sink[head])));
    });
}

}  // namespace

void attention_cpu_forward(const Context& ctx, const AttentionShape& shape, const Segments& segments,
                           const AttentionForward& args) {
    const int64_t tokens = args.q.size(0), d = shape.head_dim;
    const at::Tensor lse_HT = args.lse.defined() ? lse_matrix(args.lse, shape.heads, tokens) : at::Tensor();
    const auto forward = [&](const Block& b, Scratch& scratch) {
        at::Tensor scores =
            masked_scores(shape, query_matrix(args.q, b, scratch), key_matrix(args.k, b, scratch), b, scratch);
        const at::Tensor lse_cgr = log_sum_exp(scores, scratch);
        if (args.sinks.defined()) add_sinks(args.sinks, b, lse_cgr);
        const at::Tensor p = scores.sub_(lse_cgr.unsqueeze(-1)).exp_();
        const at::Tensor out =
            product(p.view({b.chunk, b.group * b.rows, b.keys}), key_matrix(args.v, b, scratch), scratch);
        query_view(args.out, b).copy_(out.view({b.chunk, b.group, b.rows, d}));
        if (lse_HT.defined()) lse_view(lse_HT, b).copy_(lse_cgr);
    };
    for (int64_t s = 0; s < segments.count(); ++s) {
        const auto i = static_cast<std::size_t>(s);
        const int64_t q0 = segments.q_offsets[i], k0 = segments.k_offsets[i];
        for_each_block(shape, Scratch(ctx), q0, segments.q_offsets[i + 1] - q0, k0, segments.k_offsets[i + 1] - k0,
                       forward);
    }
}

void attention_cpu_backward(const Context& ctx, const AttentionShape& shape, const Segments& segments,
                            const AttentionBackward& args) {
    const at::ScalarType type = compute_type(args.q.scalar_type());
    const int64_t tokens = args.q.size(0), d = shape.head_dim;
    const at::Tensor lse_HT = lse_matrix(args.lse, shape.heads, tokens);
    for (int64_t s = 0; s < segments.count(); ++s) {
        const auto i = static_cast<std::size_t>(s);
        const int64_t q0 = segments.q_offsets[i], k0 = segments.k_offsets[i], keys = segments.k_offsets[i + 1] - k0;
        // Several blocks of queries add to a key's gradients: summed in the compute dtype, rounded once at
        // the end.
        Scratch of_segment(ctx);
        const at::Tensor dk_Knd = of_segment.take({shape.kv_heads, keys, d}, type).zero_();
        const at::Tensor dv_Knd = of_segment.take({shape.kv_heads, keys, d}, type).zero_();
        const auto backward = [&](const Block& b, Scratch& scratch) {
            const at::Tensor q = query_matrix(args.q, b, scratch), k = key_matrix(args.k, b, scratch),
                             dout = query_matrix(args.dout, b, scratch), out = query_matrix(args.out, b, scratch);
            at::Tensor terms = scratch.take(dout.sizes(), type), delta = scratch.take({b.chunk, dout.size(1), 1}, type);
            at::mul_out(terms, dout, out);
            at::sum_out(delta, terms, {-1}, /*keepdim=*/true);
            at::Tensor p = masked_scores(shape, q, k, b, scratch).sub_(lse_view(lse_HT, b).unsqueeze(-1)).exp_();
            p = p.view({b.chunk, b.group * b.rows, b.keys});
            const auto add_to_keys = [&](const at::Tensor& sums_Knd, const at::Tensor& rows, const at::Tensor& x) {
                Scratch of_product = scratch;
                sums_Knd.narrow(0, b.kv_first, b.chunk)
                    .narrow(1, b.k_first - k0, b.keys)
                    .add_(product(rows.transpose(1, 2), x, of_product));
            };
            add_to_keys(dv_Knd, p, dout);
            at::Tensor dp = product(dout, key_matrix(args.v, b, scratch).transpose(1, 2), scratch);
            const at::Tensor ds = p.mul_(dp.sub_(delta)).mul_(shape.scale);
            query_view(args.dq, b).copy_(product(ds, k, scratch).view({b.chunk, b.group, b.rows, d}));
            add_to_keys(dk_Knd, ds, q);
        };
        for_each_block(shape, of_segment, q0, segments.q_offsets[i + 1] - q0, k0, keys, backward);
        args.dk.narrow(0, k0, keys).copy_(dk_Knd.permute({1, 0, 2}));
        args.dv.narrow(0, k0, keys).copy_(dv_Knd.permute({1, 0, 2}));
    }
}

int64_t attention_cpu_workspace(const AttentionShape& shape, at::ScalarType dtype, int64_t longest, bool backward) {
    const auto item = static_cast<int64_t>(c10::elementSize(compute_type(dtype)));
    const int64_t rows = std::min(block_rows, longest), group_scores = shape.heads / shape.kv_heads * rows * longest;
    const int64_t scores = std::min(shape.kv_heads * group_scores, std::max(most_scores, group_scores));
    const int64_t queries = shape.heads * rows * shape.head_dim, keys = shape.kv_heads * longest * shape.head_dim;
    const bool widens = compute_type(dtype) != dtype;
    // As the functions above take them: queries' sides, keys' sides, scores, what a row has one of.
    const int64_t elements = backward ? 5 * queries + (widens ? 5 : 3) * keys + 2 * scores + shape.heads * rows
                                      : 2 * queries + (widens ? 2 : 0) * keys + 2 * scores + 2 * shape.heads * rows;
    constexpr int64_t roundings = 16 * 64;
    return elements * item + rows * longest + roundings;
}

}  // namespace unsloth::ops
