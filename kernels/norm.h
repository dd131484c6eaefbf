// Launchers of RMSNorm over rows (heads = 1) and over heads; see include/unsloth/ops/norm.h for the mathematics.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/rows_view.h"
#include "unsloth/spec/dtype.h"

namespace unsloth::kernels {

struct NormShape {
    int64_t tokens = 0;
    int64_t heads = 1;
    int64_t columns = 0;
    spec::DType type = spec::DType::bf16;         ///< of x, y, dy, dx
    spec::DType weight_type = spec::DType::bf16;  ///< `type` or f32
};

/// Where a non-finite row is reported (atomic minimum); no pointer: nowhere.
struct BadSite {
    uint32_t* first = nullptr;
    uint32_t code = 0;
};

struct NormForward {
    NormShape shape;
    ConstHeads x;
    const void* weight = nullptr;  ///< [columns]
    float eps = 0;
    Heads y;                ///< may be x
    float* rstd = nullptr;  ///< [tokens * heads]
    BadSite site;
};
void norm_forward(const NormForward& params, cudaStream_t stream);

struct NormBackward {
    NormShape shape;
    ConstHeads dy;
    ConstHeads x;
    const void* weight = nullptr;
    const float* rstd = nullptr;
    Heads dx;                   ///< may be dy
    bool accumulate = false;    ///< dx += instead of dx =
    Heads y;                    ///< the forward's output, rebuilt from x; may be dy; no data: not wanted
    float* dweight = nullptr;   ///< [columns], +=; nullptr: not wanted
    float* partials = nullptr;  ///< norm_scratch_bytes of scratch, when dweight is wanted
    BadSite site;
};
void norm_backward(const NormBackward& params, cudaStream_t stream);

/// Bytes of `partials` for rows = tokens * heads; the same on every card, so that sums are too.
int64_t norm_scratch_bytes(int64_t rows, int64_t columns);

}  // namespace unsloth::kernels
