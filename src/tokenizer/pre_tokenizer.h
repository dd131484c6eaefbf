// Splits a normalised text into words, step by step as tokenizer.json's `pre_tokenizer` lists them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/alignment.h"
#include "tokenizer/pattern.h"

namespace unsloth::tokenizer {

/// Texts of 4 GiB and more are refused.
struct Word {
    uint32_t begin, end;
};
/// Never moved while it grows: a long text's words would be there twice.
using Words = std::deque<Word>;

/// A text and the words found in it; `text` views the caller's string or `rewritten`.
struct SplitText {
    std::string_view text;
    Words words;
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
/// By single characters: Digits (unicode::is_numeric), Punctuation (unicode::is_punctuation).
struct CharacterSplit {
    bool (*matches)(char32_t);
    SplitBehavior behavior;
};
/// ByteLevel's add_prefix_space: a space in front of each word that has none.
struct PrefixSpace {};
/// Metaspace without its split: spaces become `replacement`, which is also put in front where it is missing. `first`
/// (only of the whole text's first word) is the first step or none, for later ones do not see where the text began.
struct SpaceReplacement {
    enum class Prepend { always, never, first } prepend;
    std::string replacement;
};
/// ByteLevel's alphabet, where something follows that must see it (else the model reads the bytes
/// themselves).
struct ByteAlphabet {};

using PreTokenizerStep = std::variant<PatternSplit, CharacterSplit, PrefixSpace, SpaceReplacement, ByteAlphabet>;

/// `text` is valid UTF-8 and outlives `out`, which is overwritten. `first`: it begins where the whole text does. The
/// alignment is made only if `aligned`.
void split_words(const std::vector<PreTokenizerStep>& steps, std::string_view text, bool first, bool aligned,
                 SplitText& out);

}  // namespace unsloth::tokenizer
