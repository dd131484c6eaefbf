#include "unsloth/ops/range_attention.h"

#include <algorithm>
#include <cmath>

#include "ops/checks.h"
#include "ops/cpu_attention.h"
#include "ops/range_attention_cuda.h"
#include "ops/range_attention_cudnn.h"
#include "unsloth/ops/profiler.h"
#include "unsloth/ops/rows.h"

namespace unsloth::ops {
namespace {

void forward_cpu(const AttentionShape& shape, const AttentionRange& range, int64_t head, const cpu::Rows& q,
                 const cpu::Rows& k, const cpu::Rows& v, const cpu::Rows& out, float* lse_T) {
    const int64_t kv = head / (shape.heads / shape.kv_heads);
    const cpu::HeadRows key(k, kv, range.k_begin, range.k_end), value(v, kv, range.k_begin, range.k_end);
    cpu::attend(static_cast<float>(shape.scale), range.q_begin, range.q_end, head, range.k_end - range.k_begin, key,
                value, q, out, lse_T);
}

/// What one kv head's keys and values get, over all ranges and the heads that share it.
class KvHeadBackward {
  public:
    KvHeadBackward(const AttentionShape& shape, int64_t keys)
        : shape_(shape),
          dk_(static_cast<size_t>(keys * shape.head_dim), 0.0F),
          dv_(dk_.size(), 0.0F),
          row_(static_cast<size_t>(shape.head_dim)) {}

    void add(const AttentionRange& range, int64_t head, const cpu::Rows& dout, const cpu::Rows& q,
             const cpu::HeadRows& key, const cpu::HeadRows& value, const cpu::Rows& out, const float* lse_T,
             const cpu::Rows& dq) {
        const int64_t d = shape_.head_dim;
        const auto scale = static_cast<float>(shape_.scale);
        std::vector<float> of_dout(row_.size()), of_q(row_.size()), of_out(row_.size());
        for (int64_t row = range.q_begin; row < range.q_end; ++row) {
            const float* const gradient = dout.read(row, head, of_dout.data());
            const float* const query = q.read(row, head, of_q.data());
            const float delta = cpu::dot(gradient, out.read(row, head, of_out.data()), d);
            std::ranges::fill(row_, 0.0F);
            for (int64_t j = range.k_begin; j < range.k_end; ++j) {
                const float p = std::exp(scale * cpu::dot(query, key[j], d) - lse_T[row]);
                const float slope = scale * p * (cpu::dot(gradient, value[j], d) - delta);
                float* const dk = dk_.data() + j * d;
                float* const dv = dv_.data() + j * d;
                for (int64_t c = 0; c < d; ++c) {
                    row_[static_cast<size_t>(c)] += slope * key[j][c];
                    dk[c] += slope * query[c];
                    dv[c] += p * gradient[c];
                }
            }
            dq.write(row, head, row_.data());
        }
    }

    void write(int64_t kv, const cpu::Rows& dk, const cpu::Rows& dv) const {
        const int64_t d = shape_.head_dim;
        for (int64_t j = 0; j < dk.rows(); ++j) {
            dk.write(j, kv, dk_.data() + j * d);
            dv.write(j, kv, dv_.data() + j * d);
        }
    }

  private:
    const AttentionShape& shape_;
    std::vector<float> dk_, dv_, row_;
};

void check_ranges(const std::vector<AttentionRange>& ranges, int64_t queries, int64_t keys) {
    int32_t last = 0;
    for (const AttentionRange& range : ranges) {
        UNSLOTH_CHECK(last <= range.q_begin && range.q_begin < range.q_end && range.q_end <= queries &&
                          0 <= range.k_begin && range.k_begin < range.k_end && range.k_end <= keys,
                      "queries [", range.q_begin, ", ", range.q_end, ") of ", queries, " attend to keys [",
                      range.k_begin, ", ", range.k_end, ") of ", keys);
        last = range.q_end;
    }
}

/// Rows that no range has become zeros.
void zero_others(Context& ctx, const std::vector<AttentionRange>& ranges, const at::Tensor& x_THd) {
    int64_t last = 0;
    const int64_t heads = x_THd.size(1), d = x_THd.size(2);
    const bool adjacent = x_THd.stride(1) == d;  // a token's heads are one row
    const auto zero = [&](int64_t begin, int64_t end) {
        if (begin >= end) return;
        const at::Tensor rows = x_THd.narrow(0, begin, end - begin);
        if (adjacent) return zero_2d(ctx, rows.as_strided({end - begin, heads * d}, {rows.stride(0), 1}));
        for (int64_t head = 0; head < heads; ++head) zero_2d(ctx, rows.select(1, head));
    };
    for (const AttentionRange& range : ranges) {
        zero(last, range.q_begin);
        last = range.q_end;
    }
    zero(last, x_THd.size(0));
}

void check_shapes(const Context& ctx, const AttentionShape& shape, const at::Tensor& q_THd, const at::Tensor& k_SKd,
                  const at::Tensor& v_SKd) {
    UNSLOTH_CHECK(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0, shape.heads, " heads on ", shape.kv_heads);
    check_compute_tensor(ctx, "q", q_THd, {q_THd.size(0), shape.heads, shape.head_dim});
    const std::vector<int64_t> keys = {k_SKd.size(0), shape.kv_heads, shape.head_dim};
    check_tensor(ctx, "k", k_SKd, keys, q_THd.scalar_type());
    check_tensor(ctx, "v", v_SKd, keys, q_THd.scalar_type());
}

}  // namespace

std::vector<AttentionRange> own_ranges(const std::vector<int32_t>& offsets) {
    std::vector<AttentionRange> ranges;
    for (std::size_t i = 1; i < offsets.size(); ++i)
        ranges.push_back({offsets[i - 1], offsets[i], offsets[i - 1], offsets[i]});
    return ranges;
}

void range_attention_forward(Context& ctx, const AttentionShape& shape, const std::vector<AttentionRange>& ranges,
                             const at::Tensor& q_THd, const at::Tensor& k_SKd, const at::Tensor& v_SKd,
                             const at::Tensor& out_THd, const at::Tensor& lse_HT) {
    const Region region(ctx, "range_attention");
    check_shapes(ctx, shape, q_THd, k_SKd, v_SKd);
    check_tensor(ctx, "out", out_THd, q_THd.sizes(), q_THd.scalar_type());
    if (lse_HT.defined()) check_contiguous(ctx, "lse", lse_HT, {shape.heads, q_THd.size(0)}, at::kFloat);
    check_ranges(ranges, q_THd.size(0), k_SKd.size(0));
    zero_others(ctx, ranges, out_THd);
#if UNSLOTH_CUDA
    if (ctx.is_cuda()) return range_forward_cuda(ctx, shape, ranges, q_THd, k_SKd, v_SKd, out_THd, lse_HT);
#endif
    const cpu::Rows q(q_THd), k(k_SKd), v(v_SKd), out(out_THd);
    auto* const lse = lse_HT.defined() ? lse_HT.mutable_data_ptr<float>() : nullptr;
    const int64_t tokens = q_THd.size(0), count = static_cast<int64_t>(ranges.size());
    at::parallel_for(0, count * shape.heads, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const int64_t head = i % shape.heads;
            forward_cpu(shape, ranges[static_cast<size_t>(i / shape.heads)], head, q, k, v, out,
                        lse != nullptr ? lse + head * tokens : nullptr);
        }
    });
}

void range_attention_backward(Context& ctx, const AttentionShape& shape, const std::vector<AttentionRange>& ranges,
                              const at::Tensor& dout_THd, const at::Tensor& q_THd, const at::Tensor& k_SKd,
                              const at::Tensor& v_SKd, const at::Tensor& out_THd, const at::Tensor& lse_HT,
                              const at::Tensor& dq_THd, const at::Tensor& dk_SKd, const at::Tensor& dv_SKd) {
    const Region region(ctx, "range_attention backward");
    check_shapes(ctx, shape, q_THd, k_SKd, v_SKd);
    for (const at::Tensor& other : {dout_THd, out_THd, dq_THd})
        check_tensor(ctx, "dout, out or dq", other, q_THd.sizes(), q_THd.scalar_type());
    for (const at::Tensor& other : {dk_SKd, dv_SKd})
        check_tensor(ctx, "dk or dv", other, k_SKd.sizes(), q_THd.scalar_type());
    check_contiguous(ctx, "lse", lse_HT, {shape.heads, q_THd.size(0)}, at::kFloat);
    check_ranges(ranges, q_THd.size(0), k_SKd.size(0));
    zero_others(ctx, ranges, dq_THd);
#if UNSLOTH_CUDA
    if (ctx.is_cuda())
        return range_backward_cuda(ctx, shape, ranges, dout_THd, q_THd, k_SKd, v_SKd, out_THd, lse_HT, dq_THd, dk_SKd,
                                   dv_SKd);
#endif
    const cpu::Rows dout(dout_THd), q(q_THd), k(k_SKd), v(v_SKd), out(out_THd), dq(dq_THd), dk(dk_SKd), dv(dv_SKd);
    const auto* const lse = lse_HT.const_data_ptr<float>();
    const int64_t tokens = q_THd.size(0), keys = k_SKd.size(0), group = shape.heads / shape.kv_heads;
    at::parallel_for(0, shape.kv_heads, 1, [&](int64_t begin, int64_t end) {
        for (int64_t kv = begin; kv < end; ++kv) {
            const cpu::HeadRows key(k, kv, 0, keys), value(v, kv, 0, keys);
            KvHeadBackward sums(shape, keys);
            for (int64_t head = kv * group; head < (kv + 1) * group; ++head)
                for (const AttentionRange& range : ranges)
                    sums.add(range, head, dout, q, key, value, out, lse + head * tokens, dq);
            sums.write(kv, dk, dv);
        }
    });
}

int64_t range_attention_library_bytes(at::Device device, at::ScalarType dtype, const AttentionShape& shape,
                                      int64_t queries, int64_t keys, bool backward, bool deterministic) {
    if (!device.is_cuda()) return 0;
    constexpr int64_t rounding = int64_t{8} << 20, wide = static_cast<int64_t>(sizeof(float));
    const auto each = static_cast<int64_t>(c10::elementSize(dtype));
    const int64_t of_queries = queries * shape.heads * shape.head_dim, of_keys = keys * shape.heads * shape.head_dim;
    const int64_t rows = queries * shape.heads * wide, of_kv_heads = keys * shape.kv_heads * shape.head_dim;
    if (has_flash(shape, dtype) && !(backward && deterministic))
        // out; backward also dq, its sums, and the gradients of keys and values for each head and summed. Measured on
        // an H200 (LibTorch 2.11): 144 MB of 160 for 512 queries of 32 heads on 6,404 keys of 8.
        return std::max(range_cudnn_bytes(shape, queries, keys, backward),
                        of_queries * each + rows +
                            (backward ? of_queries * (each + wide) + rows + 2 * (of_keys + of_kv_heads) * each : 0)) +
               rounding;
    const int64_t group = shape.heads / shape.kv_heads, scores = group * queries * keys * wide;
    return (backward ? 4 : 2) * scores + 6 * (group * queries + keys) * shape.head_dim * wide + rounding;
}

}  // namespace unsloth::ops
