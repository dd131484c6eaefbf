// Whole numbers on a device, without waiting for what it computes.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace unsloth::generate {

/// int64 [count]. Nothing synchronises.
inline at::Tensor uploaded(const std::vector<int64_t>& values, at::Device device) {
    const at::Tensor here =
        at::empty({static_cast<int64_t>(values.size())}, at::TensorOptions(at::kLong).pinned_memory(device.is_cuda()));
    std::copy(values.begin(), values.end(), here.mutable_data_ptr<int64_t>());
    return here.to(device, /*non_blocking=*/true);
}

}  // namespace unsloth::generate
