// Launchers of a tower's small operators; see include/unsloth/ops/vision.h for the mathematics.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/rows_view.h"
#include "unsloth/spec/dtype.h"

namespace unsloth::kernels {

struct PatchValues {
    int64_t patches = 0, channels = 0, frames = 0, area = 0;
    spec::DType type = spec::DType::bf16;  ///< of out
    const uint8_t* bytes = nullptr;        ///< [patches, channels, area]
    const float* values = nullptr;         ///< [channels, 256]
    void* out = nullptr;                   ///< [patches, channels, frames, area]
};
void patch_values(const PatchValues& params, cudaStream_t stream);

struct AddInterpolated {
    int64_t patches = 0, columns = 0;
    spec::DType type = spec::DType::bf16;
    const void* table = nullptr;     ///< [N, columns]
    const int32_t* index = nullptr;  ///< [patches, 4]
    const float* share = nullptr;    ///< [patches, 4]
    Matrix x;
};
void add_interpolated(const AddInterpolated& params, cudaStream_t stream);

struct LayerNorm {
    int64_t rows = 0, columns = 0;
    spec::DType type = spec::DType::bf16;
    ConstMatrix x;
    const float* weight = nullptr;
    const float* bias = nullptr;
    float eps = 0;
    Matrix y;
};
void layer_norm_forward(const LayerNorm& params, cudaStream_t stream);

struct LayerNormBackward {
    int64_t rows = 0, columns = 0;
    spec::DType type = spec::DType::bf16;
    ConstMatrix dy, x;
    const float* weight = nullptr;
    float eps = 0;
    Matrix dx;  ///< +=
};
void layer_norm_backward(const LayerNormBackward& params, cudaStream_t stream);

struct GeluRows {
    int64_t rows = 0, columns = 0;
    spec::DType type = spec::DType::bf16;
    Matrix x;
    bool tanh = false;
};
void gelu(const GeluRows& params, cudaStream_t stream);

struct GeluBackward {
    int64_t rows = 0, columns = 0;
    spec::DType type = spec::DType::bf16;
    ConstMatrix x;
    Matrix dy;  ///< becomes the gradient of x
    bool tanh = false;
};
void gelu_backward(const GeluBackward& params, cudaStream_t stream);

}  // namespace unsloth::kernels
