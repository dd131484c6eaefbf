// tokenizer.json's `decoder`: from the tokens of a text back to the text.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "tokenizer/normalizer.h"

namespace unsloth::tokenizer {

// The steps, named as in the file; each works on the list of tokens that the one before left.
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
    int32_t start, stop;  ///< so many of them go, at most, from either end of each token
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
