// full_attention_forward on CUDA: LibTorch's kernels.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace unsloth::ops {

/// As full_attention_forward; segments of one length that follow one another are one call.
void full_attention_cuda(double scale, const std::vector<int32_t>& offsets, const at::Tensor& q_PHd,
                         const at::Tensor& k_PHd, const at::Tensor& v_PHd, const at::Tensor& out_PHd);

}  // namespace unsloth::ops
