// Values in ordinary host memory, as a mapped checkpoint has them, on their way to where they stay.
#pragma once

#include <ATen/core/Tensor.h>

namespace unsloth::ops {

/// to.copy_(values), by which several threads read large values, and fault a map's pages in: to host memory at once, to
/// a GPU through pinned buffers, for the driver's own copy of ordinary memory has one thread. Work of the current
/// stream; `values` have been read when the call returns.
void copy_from_host(const at::Tensor& values, const at::Tensor& to);
/// `host` (any type) on `device`; on the CPU the same tensor.
at::Tensor to_device(const at::Tensor& host, at::Device device);

}  // namespace unsloth::ops
