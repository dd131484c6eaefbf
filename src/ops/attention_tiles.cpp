#include "ops/attention_tiles.h"

#include <algorithm>

#include "ops/attention_by_heads.h"
#include "ops/workspace_front.h"
#include "unsloth/ops/rows.h"
#if UNSLOTH_CUDA
#include "ops/attention_cases.h"
#endif

namespace unsloth::ops {
namespace {

/// Lengths of tiles differ by it, for each has plans of its own.
constexpr int64_t tile_step = 256;

int64_t filled_up(int64_t queries) {
    return (queries + tile_step - 1) / tile_step * tile_step;
}

}  // namespace

int64_t longest_tile(const AttentionShape& shape, int64_t queries) {
    const AttentionShape one = one_kv_head(shape);
    const auto kept = [&](int64_t length) { return repeatable_bytes(one, 1, length) <= repeatable_scores; };
    int64_t length = tile_step;
    while (length < queries && kept(length + tile_step)) length += tile_step;
    return length;
}

bool tiles_may_serve(const AttentionShape& shape, int64_t queries, int64_t rows, int64_t longest_keys) {
    return (shape.window == 0 || shape.window >= longest_keys) && queries / rows >= worth_tiles;
}

int64_t tiles_bytes(const AttentionShape& shape, int64_t queries, int64_t keys) {
    const int64_t heads = shape.heads / shape.kv_heads, d = shape.head_dim;
    const int64_t length = longest_tile(shape, queries), filled = keys + tile_step;
    const int64_t of_keys = 2 * (piece_bytes(2 * filled * d) + piece_bytes(4 * filled * d));  // k, v and their sums
    const int64_t of_queries = 4 * piece_bytes(2 * length * heads * d) + piece_bytes(4 * length * heads * d);
    return of_keys + of_queries + piece_bytes(4 * length * heads) + 2 * piece_bytes(2 * length * d);
}

std::vector<TileCall> tile_calls(int64_t queries, int64_t keys, int64_t longest) {
    const int64_t filled = filled_up(queries), length = std::min(longest, filled);
    std::vector<TileCall> calls;
    for (int64_t query = 0; query < filled; query += length) {
        const int64_t count = std::min(length, filled - query), own = keys - queries + query;
        for (int64_t key = 0; key < own; key += length)
            calls.push_back({query, count, key, std::min(length, own - key), false});
        calls.push_back({query, count, own, count, true});
    }
    return calls;
}

#if UNSLOTH_CUDA
namespace {

/// A tile of queries over as many keys of its own, or over others before them.
kernels::CudnnCase tile_case(const AttentionShape& shape, at::ScalarType dtype, int64_t length, int64_t keys_before) {
    AttentionShape one = one_kv_head(shape);
    one.window = 0;
    kernels::CudnnCase c = asked_case(one, dtype, /*backward=*/true);
    c.deterministic = 1;
    c.batch = 1;
    c.length = length;
    c.unmasked = keys_before > 0 ? 1 : 0;
    c.keys = keys_before;
    return c;
}

/// Copies rows to the front of a tile, followed by zeros.
void fill(Context& ctx, const at::Tensor& rows, const at::Tensor& tile) {
    const at::Tensor flat = tile.flatten(1);
    copy_2d(ctx, rows, flat.narrow(0, 0, rows.size(0)));
    if (rows.size(0) < flat.size(0)) zero_2d(ctx, flat.narrow(0, rows.size(0), flat.size(0) - rows.size(0)));
}

/// lse of a row as [heads, queries].
at::Tensor statistics_of(const at::Tensor& lse, const AttentionShape& shape, CudaForm order, int64_t first,
                         int64_t queries) {
    const at::Tensor row = lse.view(-1).narrow(0, first * shape.heads, queries * shape.heads);
    return order == CudaForm::packed ? row.view({queries, shape.heads}).t() : row.view({shape.heads, queries});
}

/// One row of a batch: where it begins and how long it is.
struct Row {
    int64_t first_query, queries, first_key, keys;
};
std::vector<Row> rows_of_batch(const Segments& s) {
    std::vector<Row> rows;
    for (std::size_t i = 1; i < s.q_offsets.size(); ++i) {
        const int64_t query = s.q_offsets[i - 1], key = s.k_offsets[i - 1];
        rows.push_back({query, s.q_offsets[i] - query, key, s.k_offsets[i] - key});
    }
    return rows;
}

kernels::CudnnCase plan_of(const TileCall& call, const AttentionShape& shape, at::ScalarType dtype) {
    return tile_case(shape, dtype, call.queries, call.own ? 0 : call.keys);
}

/// The tiles of one row in ctx.workspace, for one kv head after the other.
class RowTiles {
  public:
    RowTiles(Context& ctx, const AttentionShape& shape, const AttentionBackward& args, const Row& row,
             CudaForm lse_order, int64_t longest)
        : ctx_(ctx),
          shape_(shape),
          args_(args),
          row_(row),
          calls_(tile_calls(row.queries, row.keys, longest)),
          front_(ctx) {
        const int64_t length = calls_.front().queries, filled = row.keys - row.queries + filled_up(row.queries);
        const auto of_keys = [&](int64_t n, at::ScalarType as) { return front_.take({n, 1, shape.head_dim}, as); };
        const auto of_queries = [&](at::ScalarType as) { return front_.take({length, heads(), shape.head_dim}, as); };
        k_ = of_keys(filled, type()), v_ = of_keys(filled, type());
        q_ = of_queries(type()), out_ = of_queries(type()), dout_ = of_queries(type()), dq_ = of_queries(type());
        lse_ = front_.take({heads() * length}, at::kFloat);
        const int64_t keys = std::ranges::max(calls_, {}, &TileCall::keys).keys;
        dk_ = of_keys(keys, type()), dv_ = of_keys(keys, type());
        dq_sum_ = dq_, dk_sum_ = dk_, dv_sum_ = dv_;
        if (calls_.size() > 1) {
            dq_sum_ = of_queries(at::kFloat);
            dk_sum_ = of_keys(filled, at::kFloat), dv_sum_ = of_keys(filled, at::kFloat);
        }
        statistics_ = statistics_of(args.lse, shape, lse_order, row.first_query, row.queries);
    }

    void backward(int64_t kv_head) {
        const auto keys = [&](const at::Tensor& x) {
            return heads_of(x.narrow(0, row_.first_key, row_.keys), kv_head, 1);
        };
        const auto give = [&](const at::Tensor& sum, const at::Tensor& to) {
            copy_2d(ctx_, sum.narrow(0, 0, row_.keys).flatten(1), keys(to));
        };
        fill(ctx_, keys(args_.k), k_), fill(ctx_, keys(args_.v), v_);
        for (const TileCall& call : calls_) {
            const int64_t there = std::min(call.queries, row_.queries - call.query);
            const auto queries = [&](const at::Tensor& x) {
                return heads_of(x.narrow(0, row_.first_query + call.query, there), kv_head, heads());
            };
            if (call.key == 0) {
                for (const auto& [from, to] :
                     {std::pair(&args_.q, &q_), std::pair(&args_.out, &out_), std::pair(&args_.dout, &dout_)})
                    fill(ctx_, queries(*from), to->narrow(0, 0, call.queries));
                fill_statistics(call, there, kv_head);
            }
            run(call);
            if (call.own) copy_2d(ctx_, dq_sum_.narrow(0, 0, there).flatten(1), queries(args_.dq));
        }
        give(dk_sum_, args_.dk), give(dv_sum_, args_.dv);
    }

  private:
    int64_t heads() const { return shape_.heads / shape_.kv_heads; }
    at::ScalarType type() const { return args_.q.scalar_type(); }
    at::Tensor lse_of(const TileCall& call) const {
        return lse_.narrow(0, 0, heads() * call.queries).view({heads(), call.queries});
    }

    void fill_statistics(const TileCall& call, int64_t there, int64_t kv_head) {
        const at::Tensor lse = lse_of(call);
        if (there < call.queries) lse.zero_();
        lse.narrow(1, 0, there).copy_(statistics_.narrow(0, kv_head * heads(), heads()).narrow(1, call.query, there));
    }

    void run(const TileCall& call) {
        const auto queries = [&](const at::Tensor& x) { return x.narrow(0, 0, call.queries); };
        const auto keys = [&](const at::Tensor& x, int64_t from) { return x.narrow(0, from, call.keys); };
        run_dense(ctx_, plan_of(call, shape_, type()),
                  AttentionBackward{.dout = queries(dout_),
                                    .q = queries(q_),
                                    .k = keys(k_, call.key),
                                    .v = keys(v_, call.key),
                                    .out = queries(out_),
                                    .lse = lse_of(call),
                                    .dq = queries(dq_),
                                    .dk = keys(dk_, 0),
                                    .dv = keys(dv_, 0)});
        if (calls_.size() == 1) return;  // there is nothing to add up
        add(queries(dq_), queries(dq_sum_), call.key == 0);
        const bool first = call.own || call.query == 0;
        add(keys(dk_, 0), keys(dk_sum_, call.key), first);
        add(keys(dv_, 0), keys(dv_sum_, call.key), first);
    }

    /// To a sum, of which it may be the first part.
    static void add(const at::Tensor& part, const at::Tensor& sum, bool first) {
        if (first)
            sum.copy_(part);
        else
            sum.add_(part);
    }

    Context& ctx_;
    const AttentionShape& shape_;
    const AttentionBackward& args_;
    Row row_;
    std::vector<TileCall> calls_;
    WorkspaceFront front_;
    at::Tensor k_, v_, dk_sum_, dv_sum_, q_, out_, dout_, dq_, dq_sum_, lse_, dk_, dv_, statistics_;
};

}  // namespace

std::optional<int64_t> tile_workspace(const AttentionShape& shape, at::ScalarType dtype, at::Device device,
                                      int64_t length, int64_t before) {
    const std::optional<int64_t> own = cudnn_workspace_of(device, tile_case(shape, dtype, length, 0));
    if (!own || before == 0) return own;
    const std::optional<int64_t> others = cudnn_workspace_of(device, tile_case(shape, dtype, length, before));
    return others ? std::optional(std::max(*own, *others)) : std::nullopt;
}

std::optional<int64_t> tiles_workspace(const AttentionShape& shape, at::ScalarType dtype, at::Device device,
                                       const Segments& segments) {
    if (!tiles_may_serve(shape, segments.q_offsets.back(), segments.count(), segments.max_k)) return {};
    int64_t most = 0;
    for (const Row& row : rows_of_batch(segments)) {
        if ((row.keys - row.queries) % dense_step != 0) return {};
        const int64_t extra = tiles_bytes(shape, row.queries, row.keys);
        for (const TileCall& call : tile_calls(row.queries, row.keys, longest_tile(shape, row.queries))) {
            const std::optional<int64_t> bytes = cudnn_workspace_of(device, plan_of(call, shape, dtype));
            if (!bytes) return {};
            most = std::max(most, extra + *bytes);
        }
    }
    return most;
}

void attention_backward_by_tiles(Context& ctx, const AttentionShape& shape, const Segments& segments,
                                 const AttentionBackward& args, CudaForm lse_order, int64_t longest) {
    for (const Row& row : rows_of_batch(segments)) {
        RowTiles tiles(ctx, shape, args, row, lse_order, longest);
        for (int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) tiles.backward(kv_head);
    }
}
#endif

}  // namespace unsloth::ops
