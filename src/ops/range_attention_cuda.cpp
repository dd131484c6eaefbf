// cuDNN for long ranges of 16-bit values, else LibTorch's flash attention; a kv head after the other by plain products
// where neither serves.
#include "ops/range_attention_cuda.h"

#if UNSLOTH_CUDA
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <functional>

#include "ops/range_attention_cudnn.h"

namespace unsloth::ops {
namespace {

/// Rows [begin, end) as [1, heads, rows, d].
at::Tensor rows_of_range(const at::Tensor& x_THd, int32_t begin, int32_t end) {
    return x_THd.narrow(0, begin, end - begin).transpose(0, 1).unsqueeze(0);
}
at::Tensor queries(const AttentionRange& range, const at::Tensor& x_THd) {
    return rows_of_range(x_THd, range.q_begin, range.q_end);
}
at::Tensor keys(const AttentionRange& range, const at::Tensor& x_SKd) {
    return rows_of_range(x_SKd, range.k_begin, range.k_end);
}

/// Ranges in a row that attend to themselves and are as long as the first, such as a tower's windows.
struct Alike {
    AttentionRange first;
    int64_t count = 1, length = 0;
    AttentionRange range(int64_t i) const {
        const auto by = static_cast<int32_t>(i * length);
        return {first.q_begin + by, first.q_end + by, first.k_begin + by, first.k_end + by};
    }
    /// Whether `one` took all of them; it takes none or all, since they have one shape.
    bool each(const std::function<bool(const AttentionRange&)>& one) const {
        for (int64_t i = 0; i < count; ++i)
            if (!one(range(i))) return false;
        return true;
    }
    /// Their rows as [count, heads, length, d].
    at::Tensor rows(const at::Tensor& x_THd, int32_t begin, int64_t each) const {
        return x_THd.narrow(0, begin, count * each).unflatten(0, {count, each}).transpose(1, 2);
    }
    at::Tensor queries(const at::Tensor& x_THd) const { return rows(x_THd, first.q_begin, length); }
    at::Tensor keys(const at::Tensor& x_SKd) const { return rows(x_SKd, first.k_begin, first.k_end - first.k_begin); }
    /// [count, heads, length]
    at::Tensor lse(const at::Tensor& lse_HT) const {
        return lse_HT.narrow(1, first.q_begin, count * length).unflatten(1, {count, length}).transpose(0, 1);
    }
};
std::vector<Alike> batches_of(const std::vector<AttentionRange>& ranges) {
    const auto is_own = [](const AttentionRange& r) { return r.q_begin == r.k_begin && r.q_end == r.k_end; };
    std::vector<Alike> batches;
    for (const AttentionRange& range : ranges) {
        const int64_t length = range.q_end - range.q_begin;
        if (!batches.empty()) {
            Alike& last = batches.back();
            if (is_own(range) && is_own(last.first) && length == last.length &&
                range.q_begin == last.first.q_begin + last.count * last.length) {
                ++last.count;
                continue;
            }
        }
        batches.push_back({range, 1, length});
    }
    return batches;
}

/// One kv head of a range, as fp32: the queries of the heads that share it one after another.
struct OneHead {
    at::Tensor q_Gd, k_Sd;
    at::Tensor probabilities(double scale, const at::Tensor& lse_G1) const {
        return at::matmul(q_Gd, k_Sd.t()).mul_(scale).sub_(lse_G1).exp_();
    }
};
at::Tensor heads_of_kv(const AttentionShape& shape, const at::Tensor& x_1Htd, int64_t kv) {
    const int64_t group = shape.heads / shape.kv_heads;
    return x_1Htd[0].narrow(0, kv * group, group);
}
at::Tensor flat(const at::Tensor& x_gtd) {
    return x_gtd.to(at::kFloat).reshape({-1, x_gtd.size(2)});
}
OneHead one_head(const AttentionShape& shape, const AttentionRange& range, const at::Tensor& q_THd,
                 const at::Tensor& k_SKd, int64_t kv) {
    return {flat(heads_of_kv(shape, queries(range, q_THd), kv)), keys(range, k_SKd)[0][kv].to(at::kFloat)};
}
at::Tensor lse_of(const AttentionShape& shape, const AttentionRange& range, const at::Tensor& lse_HT, int64_t kv) {
    const int64_t group = shape.heads / shape.kv_heads;
    return lse_HT.narrow(0, kv * group, group).narrow(1, range.q_begin, range.q_end - range.q_begin);
}

void plain_forward(const AttentionShape& shape, const AttentionRange& range, const at::Tensor& q_THd,
                   const at::Tensor& k_SKd, const at::Tensor& v_SKd, const at::Tensor& out_THd,
                   const at::Tensor& lse_HT) {
    for (int64_t kv = 0; kv < shape.kv_heads; ++kv) {
        const OneHead head = one_head(shape, range, q_THd, k_SKd, kv);
        const at::Tensor scores_GS = at::matmul(head.q_Gd, head.k_Sd.t()).mul_(shape.scale);
        const at::Tensor lse_G1 = at::logsumexp(scores_GS, {1}, /*keepdim=*/true);
        const at::Tensor out = heads_of_kv(shape, queries(range, out_THd), kv);
        const at::Tensor probabilities_GS = scores_GS.sub_(lse_G1).exp_();
        out.copy_(at::matmul(probabilities_GS, keys(range, v_SKd)[0][kv].to(at::kFloat)).view(out.sizes()));
        if (lse_HT.defined()) {
            const at::Tensor lse = lse_of(shape, range, lse_HT, kv);
            lse.copy_(lse_G1.view(lse.sizes()));
        }
    }
}

void plain_backward(const AttentionShape& shape, const AttentionRange& range, const at::Tensor& dout_THd,
                    const at::Tensor& q_THd, const at::Tensor& k_SKd, const at::Tensor& v_SKd,
                    const at::Tensor& out_THd, const at::Tensor& lse_HT, const at::Tensor& dq_THd,
                    const at::Tensor& dk_SKd, const at::Tensor& dv_SKd) {
    for (int64_t kv = 0; kv < shape.kv_heads; ++kv) {
        const OneHead head = one_head(shape, range, q_THd, k_SKd, kv);
        const at::Tensor p_GS = head.probabilities(shape.scale, lse_of(shape, range, lse_HT, kv).reshape({-1, 1}));
        const at::Tensor dout_Gd = flat(heads_of_kv(shape, queries(range, dout_THd), kv));
        const at::Tensor out_Gd = flat(heads_of_kv(shape, queries(range, out_THd), kv));
        const at::Tensor delta_G1 = (dout_Gd * out_Gd).sum(1, /*keepdim=*/true);
        keys(range, dv_SKd)[0][kv].add_(at::matmul(p_GS.t(), dout_Gd));
        const at::Tensor ds_GS = at::matmul(dout_Gd, keys(range, v_SKd)[0][kv].to(at::kFloat).t())
                                     .sub_(delta_G1)
                                     .mul_(p_GS)
                                     .mul_(shape.scale);
        const at::Tensor dq = heads_of_kv(shape, queries(range, dq_THd), kv);
        dq.copy_(at::matmul(ds_GS, head.k_Sd).view(dq.sizes()));
        keys(range, dk_SKd)[0][kv].add_(at::matmul(ds_GS.t(), head.q_Gd));
    }
}

}  // namespace

void range_forward_cuda(const Context& ctx, const AttentionShape& shape, const std::vector<AttentionRange>& ranges,
                        const at::Tensor& q_THd, const at::Tensor& k_SKd, const at::Tensor& v_SKd,
                        const at::Tensor& out_THd, const at::Tensor& lse_HT) {
    const bool flash = has_flash(shape, q_THd.scalar_type());
    // LibTorch's kernel for fp32, which gives no statistics
    const bool efficient = !lse_HT.defined() && shape.heads == shape.kv_heads && shape.head_dim % 8 == 0;
    for (const Alike& some : batches_of(ranges)) {
        const auto by_cudnn = [&](const AttentionRange& range) {
            return range_forward_cudnn(ctx, shape, range, q_THd, k_SKd, v_SKd, out_THd, lse_HT);
        };
        if (some.each(by_cudnn)) continue;
        if (!flash && efficient) {
            some.queries(out_THd).copy_(
                at::scaled_dot_product_attention(some.queries(q_THd), some.keys(k_SKd), some.keys(v_SKd), {},
                                                 /*dropout_p=*/0.0, /*is_causal=*/false, shape.scale));
            continue;
        }
        if (!flash) {
            some.each([&](const AttentionRange& range) {
                plain_forward(shape, range, q_THd, k_SKd, v_SKd, out_THd, lse_HT);
                return true;
            });
            continue;
        }
        const auto made = at::_scaled_dot_product_flash_attention(
            some.queries(q_THd), some.keys(k_SKd), some.keys(v_SKd), /*dropout_p=*/0.0,
            /*is_causal=*/false, /*return_debug_mask=*/false, shape.scale);
        some.queries(out_THd).copy_(std::get<0>(made));
        if (lse_HT.defined()) some.lse(lse_HT).copy_(std::get<1>(made));
    }
}

void range_backward_cuda(const Context& ctx, const AttentionShape& shape, const std::vector<AttentionRange>& ranges,
                         const at::Tensor& dout_THd, const at::Tensor& q_THd, const at::Tensor& k_SKd,
                         const at::Tensor& v_SKd, const at::Tensor& out_THd, const at::Tensor& lse_HT,
                         const at::Tensor& dq_THd, const at::Tensor& dk_SKd, const at::Tensor& dv_SKd) {
    dk_SKd.zero_();
    dv_SKd.zero_();
    const at::Tensor no_seed = at::empty({}, at::TensorOptions(at::kLong).device(q_THd.device()));  // no dropout
    if (ctx.deterministic || !has_flash(shape, q_THd.scalar_type())) {
        for (const AttentionRange& range : ranges)
            plain_backward(shape, range, dout_THd, q_THd, k_SKd, v_SKd, out_THd, lse_HT, dq_THd, dk_SKd, dv_SKd);
        return;
    }
    for (const Alike& some : batches_of(ranges)) {
        const auto by_cudnn = [&](const AttentionRange& range) {
            return range_backward_cudnn(ctx, shape, range, dout_THd, q_THd, k_SKd, v_SKd, out_THd, lse_HT, dq_THd,
                                        dk_SKd, dv_SKd);
        };
        if (some.each(by_cudnn)) continue;
        const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_backward(
            some.queries(dout_THd), some.queries(q_THd), some.keys(k_SKd), some.keys(v_SKd), some.queries(out_THd),
            some.lse(lse_HT).contiguous(), /*cum_seq_q=*/{}, /*cum_seq_k=*/{}, some.length,
            some.first.k_end - some.first.k_begin, /*dropout_p=*/0.0, /*is_causal=*/false, no_seed, no_seed,
            shape.scale);
        some.queries(dq_THd).copy_(dq);
        some.keys(dk_SKd).add_(dk);
        some.keys(dv_SKd).add_(dv);
    }
}

}  // namespace unsloth::ops
#endif
