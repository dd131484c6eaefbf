// bitsandbytes' 4-bit weights as they lie in a file, brought to where a plan has them.
#pragma once

#include <ATen/ATen.h>

#include <functional>

#include "unsloth/ops/quant.h"

namespace unsloth::weights {

/// Calls add(what, type, count) for each of the arrays that quant4_rows() puts. Reads no values: `view` may have none.
void quant4_arrays(const spec::Quant4View& view,
                   const std::function<void(const char* what, at::ScalarType type, int64_t count)>& add);

/// A 4-bit weight whose arrays are where put(what, values on the host) says.
ops::Quant4Tensor quant4_rows(const spec::Quant4View& view,
                              const std::function<at::Tensor(const char* what, const at::Tensor& values)>& put);

}  // namespace unsloth::weights
