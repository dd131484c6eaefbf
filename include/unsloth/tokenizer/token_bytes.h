// The bytes that a token's raw form spells, in the two ways of vocabularies.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace unsloth::tokenizer {

/// The bytes that a token in GPT-2's alphabet spells; nullopt for other characters.
std::optional<std::string> bytes_of_token(std::string_view token);

/// The byte that "<0x0A>" means; nullopt for other tokens. As in tokenizers, "+A" is a number too.
std::optional<char> fallback_byte(std::string_view token);

}  // namespace unsloth::tokenizer
