// The next token from a row's logits. sample_token is the oracle of what devices do.
//
// Legend: C rows, V vocabulary.
#pragma once

#include <cstdint>
#include <span>

#include "unsloth/ops/context.h"
#include "unsloth/spec/sampling.h"

namespace unsloth::ops {

/// Names a token's random numbers: they depend on this and the token's id, never on the rest of the batch.
struct SamplingKey {
    uint64_t seed = 0;
    uint32_t prompt = 0, answer = 0;  ///< numbers of the prompt, and of its answers
    uint32_t position = 0;            ///< in the answer
};

/// Which distribution over the whole vocabulary a token's log-probability is of. Neither knows penalties, biases,
/// top_k, top_p and min_p.
enum class LogprobOf : uint8_t {
    model,   ///< softmax(logits)
    policy,  ///< softmax(logits / temperature), which reinforcement learning trains; the temperature is above 0
};

struct SampledToken {
    int32_t id = 0;
    float logprob = 0;  ///< natural; sums are in fp64 or, of a thread's terms on CUDA, in fp32
};

/// `ids`: the prompt, then from `answer_begin` on the answer so far. The prompt may have ids beyond the vocabulary,
/// which are never drawn. Among equals the lowest id is the likelier.
/// A token is drawn as the first of independent exponential waits of rate p (so no order of summation matters).
/// `allowed` (empty: all): of words of 32 bits, the bit of each token that may be drawn, over the whole vocabulary.
/// A row of which a logit is NaN, the highest infinite, or no allowed one finite, has no token: id 0, log-probability
/// NaN. CheckError for a bias of an id outside the vocabulary, and for a policy of temperature 0.
SampledToken sample_token(std::span<const float> logits_V, const spec::Sampling& sampling, std::span<const int32_t> ids,
                          std::size_t answer_begin, const SamplingKey& key, LogprobOf logprob = LogprobOf::model,
                          std::span<const uint32_t> allowed = {});

/// How one of several rows is chosen; arguments as sample_token's, whose memory outlives the call.
struct RowSampling {
    const spec::Sampling* sampling = nullptr;
    std::span<const int32_t> ids;
    std::size_t answer_begin = 0;
    SamplingKey key;
    LogprobOf logprob = LogprobOf::model;
    std::span<const uint32_t> allowed = {};
};
/// sample_token for each row of logits_CV: ids_C int32, logprobs_C fp32 on ctx.device(), where nothing synchronises. On
/// CUDA the logits of tokens with a penalty or a bias are overwritten. CUDA draws by the same random numbers; a token
/// may differ where two waits, or top_p's sum and its bound, are as near as fp32's rounding of a logit.
void sample_tokens(Context& ctx, const at::Tensor& logits_CV, std::span<const RowSampling> rows,
                   const at::Tensor& ids_C, const at::Tensor& logprobs_C);

}  // namespace unsloth::ops
