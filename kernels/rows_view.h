// How launch parameters name tensors: a pointer, strides in elements. The last dimension is contiguous.
#pragma once

#include <cstdint>

namespace unsloth::kernels {

struct ConstMatrix {
    const void* data = nullptr;
    int64_t stride = 0;  ///< between rows
};

struct Matrix {
    void* data = nullptr;
    int64_t stride = 0;
};

/// Rows (token, head) of a [T, H, D] tensor.
struct ConstHeads {
    const void* data = nullptr;
    int64_t token_stride = 0;
    int64_t head_stride = 0;
};

struct Heads {
    void* data = nullptr;
    int64_t token_stride = 0;
    int64_t head_stride = 0;
};

}  // namespace unsloth::kernels
