// What is asked of the decoder, and what it answers.
#pragma once

#include <cstdint>
#include <vector>

#include "unsloth/spec/sampling.h"

namespace unsloth::generate {

struct Request {
    std::vector<int32_t> prompt;  ///< ids, one at least
    int64_t max_new_tokens = 1;
    int32_t adapter = -1;  ///< which of the model's, where it has several (LoadRequest::adapters); -1: none of them
    spec::Sampling sampling = {};
    uint64_t seed = 0;  ///< with the two numbers below it names the answer's random numbers
    uint32_t prompt_number = 0, answer_number = 0;
    std::vector<int32_t> stop_ids = {};  ///< each ends the answer, and is no part of it
};

enum class FinishReason : uint8_t {
    stop_token,
    stop_text,  ///< by whoever saw its tokens: a stop text
    length,     ///< max_new_tokens are there
};

struct Completion {
    std::vector<int32_t> ids;     ///< without the stop id
    std::vector<float> logprobs;  ///< natural, of each id given those before it, as the model has it
    FinishReason finish_reason = FinishReason::length;
};

}  // namespace unsloth::generate
