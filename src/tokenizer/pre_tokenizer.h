// Splits a normalised text into words, step by step as tokenizer.json's `pre_tokenizer` lists them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/alignment.h"
#include "tokenizer/regex.h"

namespace unsloth {

struct Word {
    std::size_t begin, end;
};

/// A text and the words found in it; `text` views the caller's string or `rewritten`.
struct SplitText {
    std::string_view text;
    std::vector<Word> words;
    std::string rewritten;
    Alignment alignment;  ///< from `text` to the caller's text, where a step inserted spaces
};

enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

/// One step: an optional space in front of each word, then an optional split of each word.
struct SplitStep {
    bool add_prefix_space = false;
    std::optional<Regex> pattern;
    SplitBehavior behavior = SplitBehavior::isolated;
    bool invert = false;  ///< what the pattern does not match counts as matched
};

/// Immutable; safe from any thread.
class PreTokenizer {
  public:
    explicit PreTokenizer(std::vector<SplitStep> steps) : steps_(std::move(steps)) {}
    /// `text` is valid UTF-8 and outlives `out`, which is overwritten.
    void split(std::string_view text, SplitText& out) const;

  private:
    std::vector<SplitStep> steps_;
};

}  // namespace unsloth
