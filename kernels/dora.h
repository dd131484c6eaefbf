// Launchers of DoRA's norms and scales; see include/unsloth/ops/dora.h.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/rows_view.h"
#include "unsloth/spec/dtype.h"
#include "unsloth/spec/gate_activation.h"

namespace unsloth::kernels {

struct RowSquareSums {
    int64_t rows = 0;
    int64_t columns = 0;
    spec::DType type = spec::DType::bf16;
    ConstMatrix w;
    float* out = nullptr;  ///< [rows]
};
void row_square_sums(const RowSquareSums& params, cudaStream_t stream);

struct DoraNorms {
    int64_t rows = 0;
    int64_t rank = 0;
    spec::DType type = spec::DType::bf16;  ///< of b
    const float* base = nullptr;           ///< [rows]
    ConstMatrix b;                         ///< [rows, rank]
    ConstMatrix wa;                        ///< fp32 [rank, rows]
    ConstMatrix gram;                      ///< fp32 [rank, rank]
    const float* magnitude = nullptr;      ///< [rows]
    float* scale = nullptr;                ///< [rows]
    float* inverse = nullptr;              ///< [rows]
};
void dora_norms(const DoraNorms& params, cudaStream_t stream);

struct DoraForward {
    int64_t tokens = 0;
    int64_t columns = 0;
    spec::DType type = spec::DType::bf16;
    ConstMatrix z;
    const float* scale = nullptr;
    const void* bias = nullptr;  ///< of `type`; nullptr: none
    ConstMatrix residual;        ///< no data: none; may be y
    Matrix y;
};
void dora_forward(const DoraForward& params, cudaStream_t stream);

struct DoraSwigluForward {
    int64_t tokens = 0;
    int64_t columns = 0;  ///< F
    spec::DType type = spec::DType::bf16;
    ConstMatrix z;  ///< [tokens, 2 F]
    const float* scale = nullptr;
    const void* bias = nullptr;
    Matrix act;  ///< [tokens, F]
    spec::GateActivation activation = spec::GateActivation::silu;
};
void dora_swiglu_forward(const DoraSwigluForward& params, cudaStream_t stream);

/// Columns whose sums, times `inverse`, are added to a projection's gradient.
struct MagnitudeSlice {
    int64_t begin = 0;
    int64_t count = 0;
    float* out = nullptr;
};
/// A tensor-parallel rank's in_proj_qkv is in three runs, next to in_proj_z.
inline constexpr int most_magnitude_slices = 4;

/// Sums over tokens: chunks of them in parallel, then the chunks in order.
struct MagnitudeSums {
    const float* inverse = nullptr;  ///< [columns]
    float* partial = nullptr;        ///< [dora_chunks(tokens), columns]
    int slices = 0;
    MagnitudeSlice slice[most_magnitude_slices];
};
int64_t dora_chunks(int64_t tokens);

struct DoraBackward {
    int64_t tokens = 0;
    int64_t columns = 0;
    spec::DType type = spec::DType::bf16;
    ConstMatrix dy, z;
    const float* scale = nullptr;
    Matrix dz;  ///< may be dy
    MagnitudeSums sums;
};
void dora_backward(const DoraBackward& params, cudaStream_t stream);

struct DoraSwigluBackward {
    int64_t tokens = 0;
    int64_t columns = 0;  ///< F
    spec::DType type = spec::DType::bf16;
    ConstMatrix dact;  ///< [tokens, F]
    Matrix z;          ///< [tokens, 2 F], becomes its gradient
    const float* scale = nullptr;
    const void* bias = nullptr;
    Matrix act;  ///< [tokens, F]; may be dact
    MagnitudeSums sums;
    spec::GateActivation activation = spec::GateActivation::silu;
};
void dora_swiglu_backward(const DoraSwigluBackward& params, cudaStream_t stream);

}  // namespace unsloth::kernels
