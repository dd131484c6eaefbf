// An answer's text as its tokens come, and where a stop text ends it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::generate {

class IncrementalDetokenizer {
  public:
    /// `stops`: none is empty.
    IncrementalDetokenizer(tokenizer::Tokenizer tokenizer, std::vector<std::string> stops);

    /// False: with this token a stop text is complete, the answer has ended.
    bool add(int32_t id);
    /// No token follows: what might have become a stop text or another character is text.
    void finish();

    /// Without special tokens; before the first stop text. Complete after finish(), or when add() said so.
    const std::string& text() const { return text_; }
    /// So much of text() that no later token can change or cut.
    std::size_t stable_prefix() const { return stable_; }

  private:
    std::string decode(std::size_t first, std::size_t last) const;
    bool cut_at_stop(std::size_t from);
    void find_stable();

    tokenizer::Tokenizer tokenizer_;
    std::vector<std::string> stops_;
    std::size_t longest_stop_ = 0;
    std::vector<int32_t> ids_;
    std::size_t window_ = 0, read_ = 0;  ///< the tokens that the next ones are decoded with, and those in text_
    std::string text_;
    std::size_t stable_ = 0;
    bool ended_ = false;
};

}  // namespace unsloth::generate
