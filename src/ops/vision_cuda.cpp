#include "ops/vision_cuda.h"

#include <ATen/ops/scaled_dot_product_attention.h>

namespace unsloth::ops {

void full_attention_cuda(double scale, const std::vector<int32_t>& offsets, const at::Tensor& q_PHd,
                         const at::Tensor& k_PHd, const at::Tensor& v_PHd, const at::Tensor& out_PHd) {
    const std::size_t segments = offsets.size() - 1;
    for (std::size_t first = 0, end = 0; first < segments; first = end) {
        const int64_t begin = offsets[first], length = offsets[first + 1] - begin;
        for (end = first + 1; end < segments && offsets[end + 1] - offsets[end] == length;) ++end;
        const auto count = static_cast<int64_t>(end - first);
        // [segments, heads, patches, d]
        const auto view = [&](const at::Tensor& x_PHd) {
            return x_PHd.narrow(0, begin, count * length).unflatten(0, {count, length}).transpose(1, 2);
        };
        view(out_PHd).copy_(at::scaled_dot_product_attention(view(q_PHd), view(k_PHd), view(v_PHd), {}, 0.0,
                                                             /*is_causal=*/false, scale));
    }
}

}  // namespace unsloth::ops
