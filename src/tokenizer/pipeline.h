// The steps of a tokenizer.json around its model, named as in the file: a text is normalised, split into words, and
// tokens become a text again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/alignment.h"
#include "tokenizer/regex.h"

#include "unsloth/tokenizer/token_bytes.h"

namespace unsloth::tokenizer {

// --- GPT-2's alphabet: every byte is a printable character, so that JSON can hold any byte string

/// The character that represents a byte, in UTF-8.
std::string_view character_of_byte(uint8_t byte);

// --- normalizer: rewrites a text before it is split

struct PrependStep {
    std::string text;  ///< not in front of an empty text
};
struct ReplaceStep {
    Pattern pattern;
    std::string content;
};
struct NfcStep {};

using NormalizerStep = std::variant<PrependStep, ReplaceStep, NfcStep>;

/// Returns `text` itself where nothing changes, else a view of `storage`. `text` is valid UTF-8.
/// With `aligned`, `chain` receives the way back.
std::string_view normalize(const std::vector<NormalizerStep>& steps, std::string_view text, std::string& storage,
                           bool aligned, AlignmentChain& chain);

// --- pre_tokenizer: splits a normalised text into words

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

/// Split, Digits (unicode::is_numeric), Punctuation (unicode::is_punctuation): by the matches of a pattern.
struct PatternSplit {
    Pattern pattern;
    SplitBehavior behavior = SplitBehavior::isolated;
    bool invert = false;  ///< what the pattern does not match counts as matched
};
/// GPT-2's splitting, which ByteLevel does where `use_regex` holds.
inline constexpr std::string_view gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
/// Metaspace without its split, and ByteLevel's add_prefix_space: spaces become `replacement`, which is also put in
/// front where it is missing. `first` (only of the whole text's first word) is the first step or none, for later ones
/// do not see where the text began.
struct SpaceReplacement {
    enum class Prepend { always, never, first } prepend;
    std::string replacement;
};
/// ByteLevel's alphabet, where something follows that must see it (else the model reads the bytes
/// themselves).
struct ByteAlphabet {};

using PreTokenizerStep = std::variant<PatternSplit, SpaceReplacement, ByteAlphabet>;

/// `text` is valid UTF-8 and outlives `out`, which is overwritten. `first`: it begins where the whole text does. The
/// alignment is made only if `aligned`.
void split_words(const std::vector<PreTokenizerStep>& steps, std::string_view text, bool first, bool aligned,
                 SplitText& out);

// --- decoder: tokens back to a text; each step works on the list of tokens that the one before left

struct ByteLevelDecoder {};     ///< GPT-2's alphabet to bytes; one text remains
struct ByteFallbackDecoder {};  ///< runs of <0xNN> to characters
struct FuseDecoder {};          ///< one text remains
/// Replace, and Metaspace, which writes nothing in the first token.
struct ReplaceDecoder {
    Pattern pattern;
    std::string content;
    bool not_in_first = false;
};
struct StripDecoder {
    std::string content;  ///< one character
    int32_t start, stop;  ///< how many of them are removed, at most, from either end of each token
};

using DecoderStep = std::variant<ByteLevelDecoder, ByteFallbackDecoder, FuseDecoder, ReplaceDecoder, StripDecoder>;

struct Decoder {
    std::vector<DecoderStep> steps;
    bool sequence = false;  ///< else tokens are joined by spaces where there are no steps (a file without decoder)

    /// Bytes of tokens can simply be joined, and mended where they are no UTF-8.
    bool only_byte_level() const { return steps.size() == 1 && std::holds_alternative<ByteLevelDecoder>(steps[0]); }
    /// Valid UTF-8 if the tokens are.
    std::string decode(std::vector<std::string> tokens) const;
};

}  // namespace unsloth::tokenizer
