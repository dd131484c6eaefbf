// Attention sinks: a logit of each head that takes part in the softmax and has no value.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/attention_portable.h"
#include "kernels/rows_view.h"
#include "unsloth/spec/dtype.h"

namespace unsloth::kernels {

struct AttentionSinks {
    spec::DType dtype = spec::DType::bf16;  ///< f32, bf16, f16
    int64_t tokens = 0;
    int heads = 0, head_dim = 0;
    const float* sinks = nullptr;  ///< [H]
    Heads out;                     ///< [T, H, d]: attention without sinks, becomes that with them
    RowStatistics lse;             ///< of the same, too
    int64_t length = 1;            ///< of a segment where `lse` is by segment
};
/// Issues on `stream`; runtime Error when the launch fails.
void attention_sinks(const AttentionSinks& args, cudaStream_t stream);

}  // namespace unsloth::kernels
