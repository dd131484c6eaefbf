#include "ops/attention_by_heads.h"

#include <algorithm>
#include <limits>

#include "ops/workspace_front.h"
#include "unsloth/ops/rows.h"

namespace unsloth::ops {
namespace {

constexpr int64_t most_elements = std::numeric_limits<int32_t>::max();

}  // namespace

int64_t reachable_tokens(const AttentionShape& shape) {
    return most_elements / ((shape.heads + 2 * shape.kv_heads) * shape.head_dim);
}

int64_t reachable_tokens_by_heads(const AttentionShape& shape) {
    constexpr int64_t tile = 128;
    return most_elements / (shape.heads / shape.kv_heads * shape.head_dim) / tile * tile;
}

bool within_reach(int64_t elements) {
    return elements <= most_elements;
}

Reach reach_of(const AttentionShape& shape, int64_t rows, int64_t elements) {
    if (rows <= reachable_tokens(shape) && within_reach(elements)) return Reach::whole;
    return rows <= reachable_tokens_by_heads(shape) ? Reach::by_heads : Reach::nothing;
}

Reach reach_of(const AttentionShape& shape, std::initializer_list<const at::Tensor*> tensors) {
    int64_t rows = 0, elements = 0;
    for (const at::Tensor* x : tensors) {
        rows = std::max(rows, x->size(0));
        elements = std::max(elements, x->size(0) * x->stride(0));
    }
    return reach_of(shape, rows, elements);
}

AttentionShape one_kv_head(const AttentionShape& shape) {
    AttentionShape one = shape;
    one.heads /= shape.kv_heads;
    one.kv_heads = 1;
    return one;
}

int64_t kv_head_bytes(const AttentionShape& shape, int64_t tokens, int64_t keys, bool backward) {
    const int64_t heads = shape.heads / shape.kv_heads, of_each = backward ? 4 : 2;  // q, out, dout, dq; k, v, dk, dv
    return of_each * (piece_bytes(2 * tokens * heads * shape.head_dim) + piece_bytes(2 * keys * shape.head_dim)) +
           piece_bytes(4 * tokens * heads);
}

#if UNSLOTH_CUDA
at::Tensor heads_of(const at::Tensor& x, int64_t kv_head, int64_t count) {
    return x.narrow(1, kv_head * count, count).view({x.size(0), count * x.size(2)});
}

namespace {

/// Of lse what belongs to a kv head, as rows, in the order of the form.
at::Tensor statistics_of(const at::Tensor& lse, const AttentionShape& shape, const Segments& segments, CudaForm form,
                         int64_t kv_head) {
    const int64_t shared_by = shape.heads / shape.kv_heads, all = shape.heads * segments.q_offsets.back();
    const int64_t rows = form == CudaForm::packed ? segments.q_offsets.back() : segments.count();
    const int64_t width = all / rows / shape.heads;  // of a head
    return lse.view(-1)
        .narrow(0, 0, all)
        .view({rows, shape.heads * width})
        .narrow(1, kv_head * shared_by * width, shared_by * width);
}

}  // namespace

void attention_forward_by_heads(Context& ctx, const AttentionShape& shape, const Segments& segments,
                                const AttentionForward& args, CudaForm form) {
    const AttentionShape one = one_kv_head(shape);
    const at::ScalarType type = args.q.scalar_type();
    const int64_t tokens = args.q.size(0), keys = args.k.size(0), d = shape.head_dim;
    WorkspaceFront front(ctx);
    AttentionForward a{.q = front.take({tokens, one.heads, d}, type),
                       .k = front.take({keys, 1, d}, type),
                       .v = front.take({keys, 1, d}, type),
                       .out = front.take({tokens, one.heads, d}, type),
                       .lse = {}};
    if (args.lse.defined()) a.lse = front.take({tokens * one.heads}, at::kFloat);
    for (int64_t head = 0; head < shape.kv_heads; ++head) {
        copy_2d(ctx, heads_of(args.q, head, one.heads), a.q.flatten(1));
        copy_2d(ctx, heads_of(args.k, head, 1), a.k.flatten(1));
        copy_2d(ctx, heads_of(args.v, head, 1), a.v.flatten(1));
        attention_cuda_forward(ctx, one, segments, a, {form, form});
        copy_2d(ctx, a.out.flatten(1), heads_of(args.out, head, one.heads));
        if (!args.lse.defined()) continue;
        copy_2d(ctx, statistics_of(a.lse, one, segments, form, 0),
                statistics_of(args.lse, shape, segments, form, head));
    }
}

void attention_backward_by_heads(Context& ctx, const AttentionShape& shape, const Segments& segments,
                                 const AttentionBackward& args, CudaForm form) {
    const AttentionShape one = one_kv_head(shape);
    const at::ScalarType type = args.q.scalar_type();
    const int64_t tokens = args.q.size(0), keys = args.k.size(0), d = shape.head_dim;
    WorkspaceFront front(ctx);
    const auto queries = [&] { return front.take({tokens, one.heads, d}, type); };
    const auto of_keys = [&] { return front.take({keys, 1, d}, type); };
    const AttentionBackward a{.dout = queries(),
                              .q = queries(),
                              .k = of_keys(),
                              .v = of_keys(),
                              .out = queries(),
                              .lse = front.take({tokens * one.heads}, at::kFloat),
                              .dq = queries(),
                              .dk = of_keys(),
                              .dv = of_keys()};
    for (int64_t head = 0; head < shape.kv_heads; ++head) {
        for (const auto& [from, to] :
             {std::pair(&args.dout, &a.dout), std::pair(&args.q, &a.q), std::pair(&args.k, &a.k),
              std::pair(&args.v, &a.v), std::pair(&args.out, &a.out)})
            copy_2d(ctx, heads_of(*from, head, to->size(1)), to->flatten(1));
        copy_2d(ctx, statistics_of(args.lse, shape, segments, form, head),
                statistics_of(a.lse, one, segments, form, 0));
        attention_cuda_backward(ctx, one, segments, a, {form, form});
        for (const auto& [from, to] :
             {std::pair(&a.dq, &args.dq), std::pair(&a.dk, &args.dk), std::pair(&a.dv, &args.dv)})
            copy_2d(ctx, from->flatten(1), heads_of(*to, head, from->size(1)));
    }
}

#endif

}  // namespace unsloth::ops
