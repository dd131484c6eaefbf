#pragma once

#include "unsloth/formats/safetensors.h"

namespace unsloth::formats {

/// Whether its values are numbers of 16 or 32 bits, and no codes.
inline bool is_plain(const TensorView& tensor) {
    return tensor.dtype == spec::DType::f32 || tensor.dtype == spec::DType::bf16 || tensor.dtype == spec::DType::f16;
}

}  // namespace unsloth::formats
