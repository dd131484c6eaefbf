// What weights the experts that a router chose for a token.
#pragma once

#include <cstdint>

namespace unsloth::spec {

enum class RouterWeights : uint8_t {
    of_chosen,  ///< softmax over the chosen logits: gpt-oss, and Qwen3-MoE with norm_topk_prob, whose quotient it is
    of_all,     ///< the chosen ones' part of a softmax over all logits: Qwen3-MoE without norm_topk_prob
};

}  // namespace unsloth::spec
