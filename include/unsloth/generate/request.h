// What is asked of the decoder, and what it answers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/ops/sampling.h"
#include "unsloth/spec/sampling.h"

namespace unsloth::generate {

struct PromptImages;

/// Says which tokens may come next in one answer. Of one thread at a time.
class TokenConstraint {
  public:
    virtual ~TokenConstraint() = default;
    /// Bit id % 32 of word id / 32, over the model's vocabulary; valid until advance(). None where nothing fits.
    virtual std::span<const uint32_t> allowed() = 0;
    /// The token was chosen.
    virtual void advance(int32_t id) = 0;
};

struct Request {
    std::vector<int32_t> prompt;  ///< ids, one at least
    int64_t max_new_tokens = 1;
    int32_t adapter = -1;  ///< which of the model's, where it has several (LoadRequest::adapters); -1: none of them
    spec::Sampling sampling = {};
    uint64_t seed = 0;  ///< with the two numbers below it names the answer's random numbers
    uint32_t prompt_number = 0, answer_number = 0;
    std::vector<int32_t> stop_ids = {};  ///< each ends the answer
    /// The stop id is a part of the answer, with its log-probability: a policy learns where to end. Else it is none.
    bool keeps_stop_id = false;
    ops::LogprobOf logprobs = ops::LogprobOf::model;  ///< of the answer's ids
    int64_t min_new_tokens = 0;                       ///< before these no stop id is chosen
    /// What the keys depend on besides the ids: requests share cached keys if this is equal. 0: `adapter` says it.
    /// Below 2^32. Needed where adapters are replaced while others answer.
    uint32_t prefix = 0;
    int64_t top_logprobs = -1;                         ///< the most likely tokens to report of each token; -1: none
    std::vector<int32_t> rated_ids = {};               ///< or these ids, each below the vocabulary, likely or not
    std::shared_ptr<TokenConstraint> constraint = {};  ///< of this answer alone; nullptr: any token may come
    std::shared_ptr<const PromptImages> images = {};   ///< whose tokens are in the prompt; nullptr: it is text alone
    bool prompt_logprobs = false;  ///< also report the prompt's tokens; the model's plan has a head row for each token
};

/// A token as the model rated it, given those before it.
struct TokenLogprobs {
    float logprob = 0;                                ///< natural, of the token
    std::vector<std::pair<int32_t, float>> top = {};  ///< the most likely ids, best first
};

enum class FinishReason : uint8_t {
    stop_token,  ///< also where it was the last that max_new_tokens allowed
    stop_text,   ///< by on_token: a stop text
    length,      ///< max_new_tokens are there
    not_finite,  ///< the logits of its next token are not; other answers are not affected
};

struct Completion {
    std::vector<int32_t> ids;     ///< the stop id is the last with Request::keeps_stop_id
    std::vector<float> logprobs;  ///< natural, of each id given those before it, of what Request::logprobs says
    std::vector<std::vector<std::pair<int32_t, float>>> top = {};  ///< of each id, where Request::top_logprobs asks
    std::vector<TokenLogprobs> prompt = {};  ///< with Request::prompt_logprobs: of the prompt's second token and later
    std::optional<std::pair<int32_t, TokenLogprobs>> stop = {};  ///< the stop id that ended it
    int64_t cached_tokens = 0;                                   ///< of the prompt, found in the cache
    FinishReason finish_reason = FinishReason::length;
};

/// runtime Error if the answer ended because its logits are not finite. `what` names the answer.
void require_finite(const Completion& answer, const std::string& what);

}  // namespace unsloth::generate
