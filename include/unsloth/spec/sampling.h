// How an answer's next token is chosen from the model's logits.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace unsloth::spec {

/// In the order in which they act: penalties and biases, the temperature, then what top_k, top_p and min_p leave.
struct Sampling {
    double temperature = 0;         ///< 0: always the most likely token (greedy), the first of those that are as likely
    int64_t top_k = 0;              ///< of the most likely tokens; 0: of all
    double top_p = 1;               ///< of the fewest most likely tokens whose probabilities sum to this
    double min_p = 0;               ///< of those at least this times as likely as the most likely one
    double repetition_penalty = 1;  ///< logits of tokens that were there: over this if positive, else times this
    double presence_penalty = 0;    ///< taken off the logits of tokens that are in the answer
    double frequency_penalty = 0;   ///< taken off the logits of tokens in the answer, once for each time
    std::vector<std::pair<int32_t, float>> logit_bias;  ///< added to the logits of these ids
};

}  // namespace unsloth::spec
