// Splits a normalised text into words, step by step as tokenizer.json's `pre_tokenizer` lists them.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/alignment.h"
#include "tokenizer/pattern.h"

namespace unsloth::tokenizer {

struct Word {
    std::size_t begin, end;
};

/// A text and the words found in it; `text` views the caller's string or `rewritten`.
struct SplitText {
    std::string_view text;
    std::vector<Word> words;
    std::string rewritten;
    AlignmentChain alignment;  ///< from `text` to the caller's text, where steps rewrote it
    std::size_t limit = 0;     ///< how long steps may make `text`
};

enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

/// Split: by the matches of a pattern.
struct PatternSplit {
    Pattern pattern;
    SplitBehavior behavior = SplitBehavior::isolated;
    bool invert = false;  ///< what the pattern does not match counts as matched
};
/// By single characters: WhitespaceSplit, Digits, Punctuation, CharDelimiterSplit.
struct CharacterSplit {
    enum class Class { white_space, word, numeric, punctuation, delimiter } matched;
    SplitBehavior behavior;
    char32_t delimiter = 0;
};
/// ByteLevel's add_prefix_space: a space in front of each word that has none.
struct PrefixSpace {};
/// Metaspace without its split: spaces become `replacement`, which is also put in front where it is missing.
struct SpaceReplacement {
    enum class Prepend { always, never, first } prepend;
    std::string replacement;
};
/// ByteLevel's alphabet, where something follows that must see it (else the model reads the bytes
/// themselves).
struct ByteAlphabet {};

using PreTokenizerStep = std::variant<PatternSplit, CharacterSplit, PrefixSpace, SpaceReplacement, ByteAlphabet>;

/// Immutable; safe from any thread.
class PreTokenizer {
  public:
    explicit PreTokenizer(std::vector<PreTokenizerStep> steps);

    /// The place in the whole original text of a place in the text that is split.
    using Origin = std::function<std::size_t(Alignment::Span)>;
    /// `text` is valid UTF-8 and outlives `out`, which is overwritten. `origin` is called only where
    /// `asks_origin` holds. The alignment is made only if `aligned`.
    void split(std::string_view text, bool aligned, const Origin& origin, SplitText& out) const;
    /// Some step treats the beginning of the original text in its own way (Metaspace's "first").
    bool asks_origin() const { return origin_steps_ > 0; }

  private:
    std::vector<PreTokenizerStep> steps_;
    std::size_t origin_steps_ = 0;  ///< number of steps up to and with the last that asks for the origin
};

}  // namespace unsloth::tokenizer
