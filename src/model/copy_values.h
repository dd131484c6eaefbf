// From the host's vectors to a micro-batch's buffers.
#pragma once

#include <ATen/ATen.h>

#include <span>

#include "unsloth/core/error.h"

namespace unsloth::model {

/// Host values into the first elements of a device tensor, without waiting: the pinned copy lives until the device has
/// read it (LibTorch's pinned allocator keeps it).
template <class Value>
void copy_values(std::span<const Value> from, const at::Tensor& to) {
    const auto count = static_cast<int64_t>(from.size());
    UNSLOTH_CHECK(count <= to.numel(), count, " values for ", to.numel());
    if (count == 0) return;
    const at::Tensor source =
        at::from_blob(const_cast<Value*>(from.data()), {count}, c10::CppTypeToScalarType<Value>::value);
    const at::Tensor target = to.narrow(0, 0, count);
    if (to.is_cpu()) {
        target.copy_(source);
    } else {
        at::Tensor pinned = at::empty({count}, at::TensorOptions(source.scalar_type()).pinned_memory(true));
        pinned.copy_(source);
        target.copy_(pinned, /*non_blocking=*/true);
    }
}
template <class Value>
void copy_values(const std::vector<Value>& from, const at::Tensor& to) {
    copy_values(std::span<const Value>(from), to);
}

}  // namespace unsloth::model
