// Pieces of text that prompts of all kinds begin and end with.
#pragma once

#include <string>
#include <string_view>

#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::tokenizer {

/// BOS as text where the tokenizer adds one to every text, else nothing.
std::string leading_bos(const Tokenizer& tokenizer);
/// EOS as text; input Error when the tokenizer names none.
std::string end_of_sequence(const Tokenizer& tokenizer);
/// `system`, or without one the sentence that Stanford Alpaca begins with.
std::string alpaca_preamble(std::string_view system, bool has_input);

}  // namespace unsloth::tokenizer
