#pragma once

#include <vector>

#include "unsloth/formats/checkpoint.h"
#include "unsloth/spec/convert.h"

namespace unsloth::formats {

/// A 16/32-bit tensor's values, of which the file is then dropped.
inline std::vector<float> floats_of(const TensorView& tensor) {
    std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
    spec::convert_to_f32(tensor.dtype, tensor.data.data(), tensor.elements(), values.data());
    tensor.drop();
    return values;
}

}  // namespace unsloth::formats
