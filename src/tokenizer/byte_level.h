// GPT-2's alphabet: every byte written as a printable character, so that JSON can hold any byte string.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace unsloth {

/// The character that stands for a byte (U+0021 to U+0143).
char32_t byte_level_character(uint8_t byte);
/// The bytes behind a token in the alphabet; nullopt when a character is not in it.
std::optional<std::string> bytes_of_token(std::string_view token);

}  // namespace unsloth
