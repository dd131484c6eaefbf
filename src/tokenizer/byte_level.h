// GPT-2's alphabet: every byte written as a printable character, so that JSON can hold any byte string.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace unsloth {

/// The bytes behind a token in the alphabet; nullopt when a character is not in it.
std::optional<std::string> bytes_of_token(std::string_view token);

}  // namespace unsloth
