// Launchers of products whose rows belong to experts; see include/unsloth/ops/experts.h.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/rows_view.h"
#include "unsloth/spec/dtype.h"

namespace unsloth::kernels {

/// A matrix for each expert.
struct ConstExperts {
    const void* data = nullptr;
    int64_t expert_stride = 0;
    int64_t stride = 0;  ///< between rows
};
struct Experts {
    void* data = nullptr;
    int64_t expert_stride = 0;
    int64_t stride = 0;
};

/// out[rows of e] (+)= x[rows of e] w_eᵀ (+ bias_e); without `transpose` x w_e. fp32 sums, rounded once.
struct GroupedGemm {
    int64_t rows = 0, n = 0, k = 0;
    int experts = 0;
    spec::DType type = spec::DType::bf16;
    ConstMatrix x;   ///< [rows, k]
    ConstExperts w;  ///< [n, k]; without `transpose` [k, n]
    Matrix out;      ///< [rows, n]
    bool transpose = true;
    bool accumulate = false;
    const void* bias = nullptr;     ///< [experts, n]; nullptr: none
    const int32_t* ends = nullptr;  ///< [experts]: where each one's rows end; the last is `rows`
};
void grouped_gemm(const GroupedGemm& params, cudaStream_t stream);

/// out_e += scale a[rows of e]ᵀ b[rows of e].
struct GroupedGradient {
    int64_t m = 0, n = 0;
    int experts = 0;
    spec::DType type = spec::DType::bf16;  ///< of a and b
    ConstMatrix a, b;                      ///< [rows, m], [rows, n]
    Experts out;                           ///< fp32 [m, n]
    float scale = 1;
    const int32_t* ends = nullptr;
};
void grouped_gradient(const GroupedGradient& params, cudaStream_t stream);

}  // namespace unsloth::kernels
