// tokenizer.json's `decoder`: from the tokens of a text back to the text.
#pragma once

#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include "tokenizer/normalizer.h"

namespace unsloth::tokenizer {

// The steps, named as in the file; each works on the list of tokens that the one before left.
struct ByteLevelDecoder {};     ///< GPT-2's alphabet to bytes; one text remains
struct ByteFallbackDecoder {};  ///< runs of <0xNN> to characters
struct FuseDecoder {};          ///< one text remains
/// Replace, and what Metaspace and BPEDecoder do: they write nothing in the first or the last token.
struct ReplaceDecoder {
    Pattern pattern;
    std::string content;
    bool not_in_first = false, not_in_last = false;
};
struct StripDecoder {
    std::string content;      ///< one character
    std::size_t start, stop;  ///< so many of them go, at most, from either end of each token
};

using DecoderStep = std::variant<ByteLevelDecoder, ByteFallbackDecoder, FuseDecoder, ReplaceDecoder, StripDecoder>;

/// Immutable; safe from any thread.
class Decoder {
  public:
    /// Without steps tokens are joined by spaces (a file without decoder), unless `sequence`.
    explicit Decoder(std::vector<DecoderStep> steps = {}, bool sequence = false)
        : steps_(std::move(steps)), sequence_(sequence) {}
    /// Bytes of tokens can simply be joined, and mended where they are no UTF-8.
    bool only_byte_level() const { return steps_.size() == 1 && std::holds_alternative<ByteLevelDecoder>(steps_[0]); }
    /// Valid UTF-8 if the tokens are.
    std::string decode(std::vector<std::string> tokens) const;

  private:
    std::vector<DecoderStep> steps_;
    bool sequence_;
};

}  // namespace unsloth::tokenizer
