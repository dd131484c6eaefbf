// A launcher of products whose rows belong to experts with 4-bit weights in tiles, for few rows each; see
// include/unsloth/ops/nf4_experts.h.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/nf4_tiles.h"
#include "kernels/rows_view.h"

namespace unsloth::kernels {

/// out[rows of e] (+)= x[rows of e] w_eᵀ (+ bias_e), all of bf16, fp32 sums rounded once. w has exactly the values that
/// dequantisation gives.
struct GroupedNf4 {
    int64_t rows = 0;
    Nf4TilesTable w;  ///< count: experts; rows: outputs; cols: inputs
    ConstMatrix x;    ///< rows start at multiples of 16 bytes
    Matrix out;
    bool accumulate = false;
    ConstMatrix bias;               ///< [experts, outputs]; no data: none
    const int32_t* ends = nullptr;  ///< [experts]
};
void grouped_nf4(const GroupedNf4& params, cudaStream_t stream);

}  // namespace unsloth::kernels
