// The next token from a row's logits. This is the oracle of what devices do.
#pragma once

#include <cstdint>
#include <span>

#include "unsloth/spec/sampling.h"

namespace unsloth::generate {

/// Names a token's random numbers: they depend on this and the token's id, never on what is decoded beside it.
struct DrawKey {
    uint64_t seed = 0;
    uint32_t prompt = 0, answer = 0;  ///< numbers of the prompt, and of its answers
    uint32_t position = 0;            ///< in the answer
};

struct Chosen {
    int32_t id = 0;
    float logprob = 0;  ///< of it as the model has it: natural, before penalties, biases and the temperature
};

/// `ids`: the prompt, then from `answer_begin` on the answer so far. Among equals the lowest id is the likelier.
/// A token is drawn as the first of independent exponential waits of rate p (so no order of summation matters).
/// runtime Error where a logit is NaN or none is finite. CheckError for a bias of an id outside the vocabulary.
Chosen choose_token(std::span<const float> logits_V, const spec::Sampling& sampling, std::span<const int32_t> ids,
                    std::size_t answer_begin, const DrawKey& key);

/// Whether only the model's own logits count, and of them the largest.
bool is_plain(const spec::Sampling& sampling);

}  // namespace unsloth::generate
