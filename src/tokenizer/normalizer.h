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
struct NfcStep {};

using NormalizerStep = std::variant<PrependStep, ReplaceStep, NfcStep>;

/// Returns `text` itself where nothing changes, else a view of `storage`. `text` is valid UTF-8.
/// With `aligned`, `chain` receives the way back.
std::string_view normalize(const std::vector<NormalizerStep>& steps, std::string_view text, std::string& storage,
                           bool aligned, AlignmentChain& chain);

/// Writes the bytes of `text` as characters of GPT-2's alphabet.
void append_byte_alphabet(std::string_view text, Rewriter& out);
/// Puts `prefix` in front of `text` (not empty); it shares the place of the first character, as in HF.
void append_prefixed(std::string_view prefix, std::string_view text, Rewriter& out);
/// `text` with `content` in place of all matches.
void append_replaced(const Pattern& pattern, std::string_view content, std::string_view text, Rewriter& out);

}  // namespace unsloth::tokenizer
