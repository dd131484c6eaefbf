// GPT-2's alphabet: every byte written as a printable character, so that JSON can hold any byte string.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace unsloth::tokenizer {

/// The bytes behind a token in the alphabet; nullopt when a character is not in it.
std::optional<std::string> bytes_of_token(std::string_view token);

/// The character that stands for a byte, in UTF-8.
std::string_view character_of_byte(uint8_t byte);

}  // namespace unsloth::tokenizer
