// Grammars of requests, compiled once, over the tokenizer's vocabulary.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/generate/request.h"
#include "unsloth/grammar/matcher.h"
#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::serve {

/// Every member is safe from any thread; what takes long runs on the caller's.
class Constraints {
  public:
    /// `vocab_size` is the model's.
    Constraints(tokenizer::Tokenizer tokenizer, int64_t vocab_size)
        : tokenizer_(std::move(tokenizer)), vocab_size_(vocab_size) {}

    /// The same for equal patterns, while it is among the latest. grammar::Refused.
    std::shared_ptr<grammar::MaskCache> compile(const grammar::Pattern& pattern);
    /// Of one answer, which ends with one of `stop_ids`.
    static std::shared_ptr<generate::TokenConstraint> begin(std::shared_ptr<grammar::MaskCache> cache,
                                                            std::vector<int32_t> stop_ids);

  private:
    std::shared_ptr<const grammar::Vocabulary> vocabulary();
    void add_framing(std::vector<std::string>& bytes) const;

    tokenizer::Tokenizer tokenizer_;
    int64_t vocab_size_;
    std::mutex vocabulary_mutex_, mutex_;
    std::shared_ptr<const grammar::Vocabulary> vocabulary_;
    std::deque<std::pair<std::string, std::shared_ptr<grammar::MaskCache>>> latest_;  ///< by Pattern::key()
};

}  // namespace unsloth::serve
