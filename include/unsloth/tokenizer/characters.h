// What texts are made of, for those who change words: white space, letters, case. All strings are valid UTF-8
// (Unicode 16.0).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace unsloth::tokenizer {

/// The parts of `text` between runs of white space (Unicode's White_Space and U+001C ... U+001F), as pieces of it.
std::vector<std::string_view> split_white_space(std::string_view text);

/// The first code point, as a piece of `text`; empty of an empty one.
std::string_view first_character(std::string_view text);
std::string_view last_character(std::string_view text);

/// Not empty, and of letters and their marks alone: no digit, no punctuation, no underscore.
bool is_letters(std::string_view text);

std::string lowercase(std::string_view text);
/// The first character in title case, the others as they are.
std::string with_capital(std::string_view text);

}  // namespace unsloth::tokenizer
