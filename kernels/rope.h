// Launchers of rotary position embedding; see include/unsloth/ops/rope.h.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/rows_view.h"
#include "unsloth/spec/dtype.h"

namespace unsloth::kernels {

struct RopeTable {
    int64_t tokens = 0;
    int64_t pairs = 0;                   ///< head_dim / 2
    const int32_t* positions = nullptr;  ///< [tokens, axes]
    int64_t axes = 1;
    const int32_t* axis = nullptr;    ///< [pairs] of these; nullptr: the first of each
    const float* inv_freq = nullptr;  ///< [pairs]
    float scaling = 1;
    float* cos = nullptr;  ///< [tokens, pairs]
    float* sin = nullptr;
};
void rope_table(const RopeTable& params, cudaStream_t stream);

struct RopeApply {
    int64_t tokens = 0;
    int64_t heads = 0;
    int64_t pairs = 0;
    spec::DType type = spec::DType::bf16;
    Heads x;
    const float* cos = nullptr;  ///< [tokens, pairs], contiguous
    const float* sin = nullptr;
    bool backward = false;
};
void rope_apply(const RopeApply& params, cudaStream_t stream);

}  // namespace unsloth::kernels
