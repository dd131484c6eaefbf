// What a single token is as text and as bytes, for log-probabilities.
#pragma once

#include <cstdint>
#include <string>

#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::openai {

struct TokenText {
    std::string bytes;      ///< the truth: perhaps a part of a character
    bool is_whole = false;  ///< the bytes are whole characters
    int32_t id = -1;        ///< -1: not known
    /// As OpenAI's completions write it: bytes that are no characters as "bytes:\xe2\x80".
    std::string name() const;
    /// As its chats write it: with U+FFFD in their place.
    std::string text() const;
};

/// With the space that a word's token begins with inside a text; special tokens by their names.
TokenText text_of_token(const tokenizer::Tokenizer& tokenizer, int32_t id);

}  // namespace unsloth::openai
