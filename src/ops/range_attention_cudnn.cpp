#include "ops/range_attention_cudnn.h"

#include <algorithm>
#include <bit>

#include "ops/attention_cases.h"
#if UNSLOTH_CUDA
#include <ATen/ops/empty.h>
#endif

namespace unsloth::ops {
namespace {

constexpr int64_t shortest = 256;  // flash attention takes many short ranges of one length at once

}  // namespace

int64_t range_bucket(int64_t length) {
    return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(length, shortest))));
}

int64_t range_cudnn_bytes(const AttentionShape& shape, int64_t queries, int64_t keys, bool backward) {
    if (std::min(queries, keys) < shortest) return 0;
    constexpr int64_t offsets = 1 << 20, half = 2, wide = 4;
    const int64_t of_rows = 2 * wide * shape.heads * range_bucket(queries) + offsets;
    if (!backward) return of_rows;
    const int64_t q_values = shape.heads * range_bucket(queries) * shape.head_dim,
                  k_values = shape.heads * range_bucket(keys) * shape.head_dim,
                  kv_values = shape.kv_heads * (range_bucket(keys) + keys) * shape.head_dim;
    // dq and its sums in fp32; of keys and values those of each head, of the heads that share them, and a copy.
    return of_rows + (half + wide) * q_values + 2 * half * k_values + 2 * half * kv_values;
}

#if UNSLOTH_CUDA
namespace {

using kernels::CudnnCase;

bool may_take(const AttentionShape& shape, const AttentionRange& range, at::ScalarType dtype, bool backward) {
    return cudnn_may_serve(shape, dtype) && (!backward || packed_backward_serves(shape)) &&
           range.q_end - range.q_begin >= shortest && range.k_end - range.k_begin >= shortest;
}

/// The rows of a range.
struct RangeRows {
    const AttentionRange& range;
    int64_t queries() const { return range.q_end - range.q_begin; }
    int64_t keys() const { return range.k_end - range.k_begin; }
    at::Tensor of_queries(const at::Tensor& x_THd) const { return x_THd.narrow(0, range.q_begin, queries()); }
    at::Tensor of_keys(const at::Tensor& x_SKd) const { return x_SKd.narrow(0, range.k_begin, keys()); }
    at::Tensor lse_TH(const at::Tensor& lse_HT) const { return lse_HT.narrow(1, range.q_begin, queries()).t(); }
};

CudnnCase range_case(const AttentionShape& shape, const RangeRows& rows, at::ScalarType dtype, bool backward) {
    CudnnCase c = asked_case(shape, dtype, backward);
    c.packed = c.unmasked = c.batch = 1;
    c.length = range_bucket(rows.queries());
    c.keys = range_bucket(rows.keys());
    return c;
}

/// Undefined for a case without a plan.
at::Tensor scratch_of(const Context& ctx, const CudnnCase& c) {
    const std::optional<int64_t> bytes = cudnn_workspace_of(ctx.device(), c);
    return bytes ? at::empty({*bytes}, at::TensorOptions(at::kByte).device(ctx.device())) : at::Tensor();
}

kernels::CudnnPointers one_sequence(const RangeRows& rows) {
    kernels::CudnnPointers p;
    p.sequences = 1;
    p.one_queries = static_cast<int>(rows.queries());
    p.one_keys = static_cast<int>(rows.keys());
    return p;
}

}  // namespace

bool range_forward_cudnn(const Context& ctx, const AttentionShape& shape, const AttentionRange& range,
                         const at::Tensor& q_THd, const at::Tensor& k_SKd, const at::Tensor& v_SKd,
                         const at::Tensor& out_THd, const at::Tensor& lse_HT) {
    if (!may_take(shape, range, q_THd.scalar_type(), /*backward=*/false)) return false;
    const RangeRows rows{range};
    const at::Tensor q = rows.of_queries(q_THd), k = rows.of_keys(k_SKd), v = rows.of_keys(v_SKd),
                     out = rows.of_queries(out_THd);
    if (!aligned({&q, &k, &v, &out})) return false;
    CudnnCase c = range_case(shape, rows, q.scalar_type(), /*backward=*/false);
    c.statistics = lse_HT.defined();
    c.q = strides_of(q), c.k = strides_of(k), c.v = strides_of(v), c.out = strides_of(out);
    const at::Tensor scratch = scratch_of(ctx, c);
    if (!scratch.defined()) return false;
    kernels::CudnnPointers p = one_sequence(rows);
    p.q = q.data_ptr(), p.k = k.data_ptr(), p.v = v.data_ptr(), p.out = out.data_ptr();
    at::Tensor lse_TH;
    if (lse_HT.defined()) {
        lse_TH = at::empty({rows.queries(), shape.heads}, lse_HT.options());
        p.statistics = lse_TH.data_ptr<float>();
    }
    kernels::CudnnAttention::of(ctx.device().index())
        .run(c, p, scratch.data_ptr(), static_cast<cudaStream_t>(ctx.stream()));
    if (lse_HT.defined()) rows.lse_TH(lse_HT).copy_(lse_TH);
    return true;
}

bool range_backward_cudnn(const Context& ctx, const AttentionShape& shape, const AttentionRange& range,
                          const at::Tensor& dout_THd, const at::Tensor& q_THd, const at::Tensor& k_SKd,
                          const at::Tensor& v_SKd, const at::Tensor& out_THd, const at::Tensor& lse_HT,
                          const at::Tensor& dq_THd, const at::Tensor& dk_SKd, const at::Tensor& dv_SKd) {
    if (!may_take(shape, range, q_THd.scalar_type(), /*backward=*/true)) return false;
    const RangeRows rows{range};
    const at::Tensor q = rows.of_queries(q_THd), k = rows.of_keys(k_SKd), v = rows.of_keys(v_SKd),
                     out = rows.of_queries(out_THd), dout = rows.of_queries(dout_THd), dq = rows.of_queries(dq_THd);
    if (!aligned({&q, &k, &v, &out, &dout, &dq})) return false;
    CudnnCase c = range_case(shape, rows, q.scalar_type(), /*backward=*/true);
    c.q = strides_of(q), c.k = strides_of(k), c.v = strides_of(v), c.out = strides_of(out);
    c.dout = strides_of(dout);
    const at::Tensor scratch = scratch_of(ctx, c);
    if (!scratch.defined()) return false;
    const at::Tensor lse_TH = rows.lse_TH(lse_HT).contiguous();
    const at::Tensor dkv = at::empty({2, rows.keys(), shape.kv_heads, shape.head_dim}, q.options());
    kernels::CudnnPointers p = one_sequence(rows);
    p.q = q.data_ptr(), p.k = k.data_ptr(), p.v = v.data_ptr(), p.out = out.data_ptr(), p.dout = dout.data_ptr();
    p.statistics = lse_TH.data_ptr<float>();
    p.dq = rows_of(dq), p.dk = rows_of(dkv[0]), p.dv = rows_of(dkv[1]);
    const auto stream = static_cast<cudaStream_t>(ctx.stream());
    kernels::CudnnAttention& cudnn = kernels::CudnnAttention::of(ctx.device().index());
    cudnn.run(c, p, scratch.data_ptr(), stream);
    cudnn.unpack_gradients(c, p, rows.queries(), rows.keys(), scratch.data_ptr(), stream);
    rows.of_keys(dk_SKd).add_(dkv[0]);
    rows.of_keys(dv_SKd).add_(dkv[1]);
    return true;
}
#endif

}  // namespace unsloth::ops
