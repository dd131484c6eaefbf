// The next token of rows of logits (include/unsloth/ops/sampling.h), a thread block a row.
//
// Legend: C rows, V vocabulary.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/rows_view.h"
#include "unsloth/spec/dtype.h"

namespace unsloth::kernels {

/// How a row is chosen; `adjusted`: the tokens whose logits a penalty or a bias changes, each once.
struct SampledRow {
    float temperature = 0;  ///< 0: greedy
    int32_t top_k = 0;      ///< 0: all
    double top_p = 1, log_min_p = 0;
    bool has_min_p = false;
    float repetition_penalty = 1, presence_penalty = 0;
    uint32_t seed_low = 0, seed_high = 0, prompt = 0, answer = 0, position = 0;
    int32_t adjusted_begin = 0, adjusted_end = 0;
    int32_t allowed_begin = -1;  ///< the first of its words in `allowed`; -1: all tokens are
    float logprob_divisor = 1;   ///< of the model's logits, for the log-probability
};

struct AdjustedToken {
    int32_t id = 0;
    bool repeated = false, in_answer = false, biased = false;
    float bias = 0;
    float raw = 0, value = 0;  ///< the kernel's: the model's logit, and what became of it
};

struct Sampling {
    spec::DType dtype = spec::DType::bf16;  ///< f32, bf16, f16
    int rows = 0, vocabulary = 0;
    Matrix logits;  ///< [C, V]; those of adjusted tokens become -inf
    const SampledRow* how = nullptr;
    AdjustedToken* adjusted = nullptr;
    const uint32_t* allowed = nullptr;  ///< bits by token, of the rows that have them
    int32_t* ids = nullptr;             ///< [C]
    float* logprobs = nullptr;          ///< [C]; NaN, with id 0, where a logit is NaN or none that is allowed is finite
};
/// Issues on `stream`. CheckError for other types.
void sample_rows(const Sampling& args, cudaStream_t stream);

}  // namespace unsloth::kernels
