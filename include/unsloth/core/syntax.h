// What is wrong with a text that a parser refused, in words that do not presuppose the grammar.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "unsloth/core/error.h"

namespace unsloth {

struct SyntaxError {
    std::size_t at = 0;  ///< offset of the byte where it shows
    std::string words;   ///< "a comma is missing before this"
};

/// The first error of a text that is no JSON. `comments`: // and /* */ are allowed. `unique_keys`: a key that an
/// object has already is an error, if it is written alike. A text without an error gets words that say no more than
/// that.
SyntaxError find_json_error(std::string_view text, bool comments = false, bool unique_keys = false);

/// Line and column of a byte, counted from 1; columns count characters.
struct TextPlace {
    std::size_t line = 1, column = 1;
};
TextPlace place_of(std::string_view text, std::size_t at);

/// The line with its number, and below it a mark under the byte: two lines, of which the second begins with `indent`.
/// Of a long line the part around the mark.
std::string marked_line(std::string_view text, std::size_t at, std::string_view indent = "  ");

/// For a file that a JSON parser refused: the input Error "SOURCE: not valid JSON: line 3, column 5: …", with the line.
Error not_valid_json(const std::string& source, std::string_view text);

}  // namespace unsloth
