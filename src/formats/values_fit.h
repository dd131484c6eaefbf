#pragma once

#include <cstdint>
#include <string>

#include "unsloth/spec/dtype.h"

namespace unsloth::formats {

/// Input Error for one of n values that a tensor of this name and type cannot hold.
void require_values_fit(const float* values, int64_t n, spec::DType type, const std::string& name);

}  // namespace unsloth::formats
