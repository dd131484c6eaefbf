// Attention's entry points: checks made once, then the implementation of the device.
#include "unsloth/ops/attention.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "ops/attention_by_heads.h"
#include "ops/attention_impl.h"
#include "ops/attention_tiles.h"
#include "ops/workspace_front.h"
#include "unsloth/core/error.h"
#include "unsloth/ops/device.h"
#include "unsloth/ops/profiler.h"

namespace unsloth::ops {
namespace {

constexpr int64_t most_head_dim = 256;

void check_shape(const AttentionShape& shape) {
    UNSLOTH_CHECK(shape.heads > 0 && shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0,
                  "attention: ", shape.heads, " heads cannot share ", shape.kv_heads, " kv heads");
    UNSLOTH_CHECK(shape.head_dim > 0 && shape.head_dim <= most_head_dim, "attention: head_dim ", shape.head_dim,
                  " is not between 1 and ", most_head_dim);
    UNSLOTH_CHECK(shape.window >= 0, "attention: window ", shape.window);
    UNSLOTH_CHECK(shape.scale > 0, "attention: the scale is not set");
}

void check_segments(const Context& ctx, const Segments& s) {
    UNSLOTH_CHECK(s.q_offsets.size() == s.k_offsets.size() && s.q_offsets.size() >= 2,
                  "attention: ", s.q_offsets.size(), " and ", s.k_offsets.size(), " offsets");
    UNSLOTH_CHECK(s.q_offsets.front() == 0 && s.k_offsets.front() == 0, "attention: offsets must start at 0");
    for (std::size_t i = 1; i < s.q_offsets.size(); ++i) {
        const int32_t q = s.q_offsets[i] - s.q_offsets[i - 1], k = s.k_offsets[i] - s.k_offsets[i - 1];
        UNSLOTH_CHECK(q > 0 && k >= q, "attention: segment ", i - 1, " has ", q, " queries and ", k, " keys");
        UNSLOTH_CHECK(q <= s.max_q && k <= s.max_k, "attention: segment ", i - 1, " is longer than the longest: ", q,
                      " > ", s.max_q, " or ", k, " > ", s.max_k);
        UNSLOTH_CHECK(!s.uniform || (q == s.max_q && k == s.max_q), "attention: segments are not uniform");
    }
    if (!ctx.is_cuda()) return;
    for (const at::Tensor* x : {&s.q_offsets_device, &s.k_offsets_device})
        UNSLOTH_CHECK(x->defined() && x->device() == ctx.device() && x->scalar_type() == at::kInt &&
                          x->is_contiguous() && x->numel() >= s.count() + 1,
                      "attention: segment offsets must be on ", ctx.device(), " as int32, at least ", s.count() + 1);
}

void check_rows(const at::Tensor& x, const char* name, int64_t tokens, int64_t heads, int64_t head_dim,
                const at::Tensor& like) {
    UNSLOTH_CHECK(x.defined() && x.dim() == 3 && x.size(0) == tokens && x.size(1) == heads && x.size(2) == head_dim,
                  "attention: ", name, " is ", x.defined() ? x.sizes() : at::IntArrayRef{}, ", expected [", tokens,
                  ", ", heads, ", ", head_dim, "]");
    UNSLOTH_CHECK(head_dim == 1 || x.stride(2) == 1, "attention: ", name,
                  "'s last dimension must be contiguous, its strides are ", x.strides());
    UNSLOTH_CHECK(x.scalar_type() == like.scalar_type() && x.device() == like.device(), "attention: ", name, " is ",
                  x.scalar_type(), " on ", x.device(), ", q is ", like.scalar_type(), " on ", like.device());
}

void check_lse(const at::Tensor& lse, const AttentionShape& shape, int64_t tokens, const at::Tensor& q) {
    const at::ScalarType expected = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    UNSLOTH_CHECK(lse.scalar_type() == expected && lse.is_contiguous() && lse.numel() >= shape.heads * tokens &&
                      lse.device() == q.device(),
                  "attention: lse is ", lse.scalar_type(), " ", lse.sizes(), " on ", lse.device(), ", expected ",
                  expected, " with ", shape.heads * tokens, " elements on ", q.device());
}

void check_inputs(const Context& ctx, const AttentionShape& shape, const Segments& segments, const at::Tensor& q,
                  const at::Tensor& k, const at::Tensor& v, const at::Tensor& out) {
    check_shape(shape);
    check_segments(ctx, segments);
    const int64_t t = segments.q_offsets.back(), s = segments.k_offsets.back();
    UNSLOTH_CHECK(q.defined() && q.device() == ctx.device(), "attention: q is not on ", ctx.device());
    const at::ScalarType type = q.scalar_type();
    UNSLOTH_CHECK(
        type == at::kFloat || type == at::kBFloat16 || type == at::kHalf || (type == at::kDouble && !ctx.is_cuda()),
        "attention: dtype ", type, " is not supported");
    check_rows(q, "q", t, shape.heads, shape.head_dim, q);
    check_rows(k, "k", s, shape.kv_heads, shape.head_dim, q);
    check_rows(v, "v", s, shape.kv_heads, shape.head_dim, q);
    check_rows(out, "out", t, shape.heads, shape.head_dim, q);
}

/// Of cuDNN 9 on any card: two statistics a row, what its packed form keeps of offsets; backward the gradient of the
/// queries in fp32, those of keys and values for every head in 16 bit, and where bits must repeat the scores in 16 bit.
int64_t cudnn_workspace_bound(const AttentionShape& shape, bool deterministic, const PackedLimits& sizes,
                              bool backward) {
    constexpr int64_t offsets = 1 << 20;
    const int64_t rows = shape.heads * std::max(sizes.tokens, sizes.keys), of_forward = 2 * 4 * rows + offsets;
    if (!backward) return of_forward;
    const int64_t scores = deterministic ? std::min(repeatable_scores, 2 * rows * sizes.longest) : 0;
    return of_forward + rows * shape.head_dim * (4 + 2 * 2) + scores;
}

/// None where it does not serve.
std::optional<int64_t> cudnn_workspace(const AttentionShape& shape, at::ScalarType dtype, at::Device device,
                                       bool deterministic, const PackedLimits& sizes, bool backward) {
    if (is_absent(device) && !cudnn_may_serve(shape, dtype)) return {};
    if (is_absent(device)) return cudnn_workspace_bound(shape, deterministic, sizes, backward);
#if UNSLOTH_CUDA
    if (device.is_cuda()) return attention_cudnn_workspace(shape, dtype, device, deterministic, sizes, backward);
#endif
    UNSLOTH_CHECK(false, "this program was built without CUDA: no attention for ", dtype, " on ", device);
}

/// Of the backward pass of long rows whose bits repeat; 0 where cuDNN does not serve it so.
int64_t repeatable_workspace(const AttentionShape& shape, at::ScalarType dtype, at::Device device,
                             const PackedLimits& sizes) {
    const int64_t keys = shape.window > 0 ? std::min(sizes.longest, shape.window) : sizes.longest;
    const int64_t queries = std::min(sizes.tokens, keys), tile = longest_tile(shape, queries);
    if (!tiles_may_serve(shape, queries, 1, keys)) return 0;
    std::optional<int64_t> of_cudnn;
    if (is_absent(device)) of_cudnn = cudnn_workspace_bound(one_kv_head(shape), true, {tile, 1, tile}, true);
#if UNSLOTH_CUDA
    if (!is_absent(device)) of_cudnn = tile_workspace(shape, dtype, device, tile, keys > tile ? tile : 0);
#endif
    return of_cudnn ? tiles_bytes(shape, queries, keys) + *of_cudnn : 0;
}

}  // namespace

void attention_forward(Context& ctx, const AttentionShape& shape, const Segments& segments, const at::Tensor& q_THd,
                       const at::Tensor& k_SKd, const at::Tensor& v_SKd, const at::Tensor& out_THd,
                       const at::Tensor& lse, const at::Tensor& sinks_H) {
    const Region region(ctx, "attention");
    check_inputs(ctx, shape, segments, q_THd, k_SKd, v_SKd, out_THd);
    if (lse.defined()) check_lse(lse, shape, q_THd.size(0), q_THd);
    check_sinks(shape, q_THd, sinks_H);
    AttentionForward args{q_THd, k_SKd, v_SKd, out_THd, lse, sinks_H};
#if UNSLOTH_CUDA
    if (ctx.is_cuda()) {
        WorkspaceFront front(ctx);
        if (sinks_H.defined() && !lse.defined()) args.lse = front.take({shape.heads * q_THd.size(0)}, at::kFloat);
        return attention_cuda_forward(ctx, shape, segments, args, choose_forward(ctx, shape, segments, args));
    }
#endif
    attention_cpu_forward(ctx, shape, segments, args);
}

void attention_backward(Context& ctx, const AttentionShape& shape, const Segments& segments, const at::Tensor& dout_THd,
                        const at::Tensor& q_THd, const at::Tensor& k_SKd, const at::Tensor& v_SKd,
                        const at::Tensor& out_THd, const at::Tensor& lse, const at::Tensor& dq_THd,
                        const at::Tensor& dk_SKd, const at::Tensor& dv_SKd) {
    const Region region(ctx, "attention_backward");
    check_inputs(ctx, shape, segments, q_THd, k_SKd, v_SKd, out_THd);
    UNSLOTH_CHECK(lse.defined(), "attention: the backward pass needs the forward's lse");
    check_lse(lse, shape, q_THd.size(0), q_THd);
    check_rows(dout_THd, "dout", q_THd.size(0), shape.heads, shape.head_dim, q_THd);
    check_rows(dq_THd, "dq", q_THd.size(0), shape.heads, shape.head_dim, q_THd);
    check_rows(dk_SKd, "dk", k_SKd.size(0), shape.kv_heads, shape.head_dim, q_THd);
    check_rows(dv_SKd, "dv", k_SKd.size(0), shape.kv_heads, shape.head_dim, q_THd);
    const AttentionBackward args{dout_THd, q_THd, k_SKd, v_SKd, out_THd, lse, dq_THd, dk_SKd, dv_SKd};
#if UNSLOTH_CUDA
    if (ctx.is_cuda())
        return attention_cuda_backward(ctx, shape, segments, args, choose_backward(ctx, shape, segments, args));
#endif
    attention_cpu_backward(ctx, shape, segments, args);
}

void check_sinks(const AttentionShape& shape, const at::Tensor& q, const at::Tensor& sinks_H) {
    UNSLOTH_CHECK(shape.sinks == sinks_H.defined(), "attention: the shape says that it has ",
                  shape.sinks ? "sinks" : "no sinks", ", the call does not");
    if (!shape.sinks) return;
    const at::ScalarType expected = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    UNSLOTH_CHECK(sinks_H.scalar_type() == expected && sinks_H.dim() == 1 && sinks_H.is_contiguous() &&
                      sinks_H.numel() == shape.heads && sinks_H.device() == q.device(),
                  "attention: sinks are ", sinks_H.scalar_type(), " ", sinks_H.sizes(), " on ", sinks_H.device(),
                  ", expected ", expected, " [", shape.heads, "] on ", q.device());
}

bool cudnn_may_serve(const AttentionShape& shape, at::ScalarType dtype) {
    return (dtype == at::kBFloat16 || dtype == at::kHalf) && shape.head_dim % 8 == 0;
}

int64_t repeatable_bytes(const AttentionShape& shape, int64_t rows, int64_t length) {
    constexpr int64_t tile = 128;
    const int64_t padded = (length + tile - 1) / tile * tile;
    return 2 * shape.heads * rows * padded * padded;
}

bool cudnn_may_repeat(const AttentionShape& shape, int64_t length) {
    return repeatable_bytes(one_kv_head(shape), 1, length) <= repeatable_scores;
}

int64_t attention_workspace(const AttentionShape& asked, at::ScalarType dtype, at::Device device, bool deterministic,
                            int64_t tokens, int64_t segments, int64_t longest, bool backward, int64_t keys,
                            int64_t row) {
    check_shape(asked);
    AttentionShape shape = asked;
    if (std::exchange(shape.sinks, false) && !device.is_cpu())  // a forward without lse takes one
        return piece_bytes(shape.heads * tokens * static_cast<int64_t>(sizeof(float))) +
               attention_workspace(shape, dtype, device, deterministic, tokens, segments, longest, backward, keys, row);
    const int64_t most = std::max(tokens, keys);
    UNSLOTH_CHECK(tokens > 0 && segments > 0 && longest > 0 && longest <= most, "attention: ", most, " tokens in ",
                  segments, " segments of at most ", longest);
    if (device.is_cpu()) return attention_cpu_workspace(shape, dtype, longest, backward);
    const PackedLimits sizes{tokens, segments, longest, keys}, whole = sizes.at_most(reachable_tokens(shape)),
                                                               copied = sizes.at_most(reachable_tokens_by_heads(shape));
    const auto cudnn_goes_back = [&](const PackedLimits& s) {
        return backward && (!deterministic || cudnn_may_repeat(shape, s.longest));
    };
    const auto of_cudnn = [&](const AttentionShape& asked, const PackedLimits& s) {
        return cudnn_workspace(asked, dtype, device, deterministic, s, cudnn_goes_back(s));
    };
    const int64_t own = shape.heads * tokens * static_cast<int64_t>(sizeof(float));  // sums of dO * O, of any length
    const auto at_once = of_cudnn(shape, whole);  // of shorter passes, or of those whose rows are narrower
    const bool in_tiles = at_once && backward && deterministic;
    const int64_t bytes =
        std::max({own, at_once.value_or(0), in_tiles ? repeatable_workspace(shape, dtype, device, sizes) : int64_t{0}});
    if (!at_once || reach_of(shape, most, most * row) == Reach::whole) return bytes;
    const auto of_each = of_cudnn(one_kv_head(shape), copied);
    const int64_t keys_copied = std::max(copied.tokens, copied.keys);
    const int64_t copies = kv_head_bytes(shape, copied.tokens, keys_copied, cudnn_goes_back(copied));
    return of_each ? std::max(bytes, copies + *of_each) : bytes;
}

int64_t attention_lse_elements(const AttentionShape& shape, int64_t tokens) {
    check_shape(shape);
    return shape.heads * tokens;
}

}  // namespace unsloth::ops
