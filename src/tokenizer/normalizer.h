// tokenizer.json's `normalizer`: rewrites a text before it is split.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tokenizer/alignment.h"
#include "tokenizer/pattern.h"

namespace unsloth::tokenizer {

// The steps, named as in the file.
struct PrependStep {
    std::string text;  ///< not in front of an empty text
};
struct ReplaceStep {
    Pattern pattern;
    std::string content;
};
struct NormalFormStep {
    unicode::NormalForm form;
};
struct StripStep {
    bool left, right;
};
struct LowercaseStep {};
struct StripAccentsStep {};

using NormalizerStep =
    std::variant<PrependStep, ReplaceStep, NormalFormStep, StripStep, LowercaseStep, StripAccentsStep>;

/// Immutable; safe from any thread.
class Normalizer {
  public:
    explicit Normalizer(std::vector<NormalizerStep> steps = {}) : steps_(std::move(steps)) {}
    const std::vector<NormalizerStep>& steps() const { return steps_; }
    /// Returns `text` itself where nothing changes, else a view of `storage`. `text` is valid UTF-8.
    /// With `aligned`, `chain` receives the way back.
    std::string_view apply(std::string_view text, std::string& storage, bool aligned, AlignmentChain& chain) const;

  private:
    std::vector<NormalizerStep> steps_;
};

/// Writes the bytes of `text` as characters of GPT-2's alphabet.
void append_byte_alphabet(std::string_view text, Rewriter& out);
/// Puts `prefix` in front of `text` (not empty); it shares the place of the first character, as in HF.
void append_prefixed(std::string_view prefix, std::string_view text, Rewriter& out);
/// `text` with `content` in place of all matches.
void append_replaced(const Pattern& pattern, std::string_view content, std::string_view text, Rewriter& out);

}  // namespace unsloth::tokenizer
