// ops/range_attention.h on CUDA.
#pragma once

#include "unsloth/ops/range_attention.h"

namespace unsloth::ops {

/// Whether LibTorch's flash attention takes these heads.
inline bool has_flash(const AttentionShape& shape, at::ScalarType dtype) {
    return dtype != at::kFloat && shape.head_dim % 8 == 0 && shape.head_dim <= 256;
}

#if UNSLOTH_CUDA

void range_forward_cuda(const Context& ctx, const AttentionShape& shape, const std::vector<AttentionRange>& ranges,
                        const at::Tensor& q_THd, const at::Tensor& k_SKd, const at::Tensor& v_SKd,
                        const at::Tensor& out_THd, const at::Tensor& lse_HT);
void range_backward_cuda(const Context& ctx, const AttentionShape& shape, const std::vector<AttentionRange>& ranges,
                         const at::Tensor& dout_THd, const at::Tensor& q_THd, const at::Tensor& k_SKd,
                         const at::Tensor& v_SKd, const at::Tensor& out_THd, const at::Tensor& lse_HT,
                         const at::Tensor& dq_THd, const at::Tensor& dk_SKd, const at::Tensor& dv_SKd);

#endif

}  // namespace unsloth::ops
