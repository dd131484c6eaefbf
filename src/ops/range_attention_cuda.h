// LibTorch's part of ops/range_attention.h.
#pragma once

#include "unsloth/ops/range_attention.h"

namespace unsloth::ops {

void range_forward_cuda(const AttentionShape& shape, const std::vector<AttentionRange>& ranges, const at::Tensor& q_THd,
                        const at::Tensor& k_SKd, const at::Tensor& v_SKd, const at::Tensor& out_THd,
                        const at::Tensor& lse_HT);
void range_backward_cuda(const AttentionShape& shape, const std::vector<AttentionRange>& ranges,
                         const at::Tensor& dout_THd, const at::Tensor& q_THd, const at::Tensor& k_SKd,
                         const at::Tensor& v_SKd, const at::Tensor& out_THd, const at::Tensor& lse_HT,
                         const at::Tensor& dq_THd, const at::Tensor& dk_SKd, const at::Tensor& dv_SKd,
                         bool deterministic);

}  // namespace unsloth::ops
