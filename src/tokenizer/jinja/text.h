// Python's str: code points, case, white space, splitting, repr. All strings are valid UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace unsloth::tokenizer::jinja::text {

/// Number of code points.
std::size_t length(std::string_view s);
/// Each code point as a piece of `s`.
std::vector<std::string_view> characters(std::string_view s);
/// Byte position of code point `index`; the size of `s` when there are fewer.
std::size_t byte_of(std::string_view s, std::size_t index);
std::u32string decode(std::string_view s);
std::string encode(std::u32string_view s);

std::string lower(std::string_view s);
std::string upper(std::string_view s);
std::string casefold(std::string_view s);
std::string swapcase(std::string_view s);
std::string capitalize(std::string_view s);  ///< first character in title case, the rest lower
std::string title(std::string_view s);       ///< str.title (Jinja's filter differs)

bool is_space(char32_t c);    ///< str.isspace, and \s of Python's regular expressions
bool is_word(char32_t c);     ///< \w of Python's regular expressions
bool is_decimal(char32_t c);  ///< str.isdecimal

/// str.isalpha() and the like: every character has the property, and there is one.
/// `property`: alnum, alpha, ascii, decimal, digit, identifier, lower, numeric, printable, space, title,
/// upper.
bool has_property(std::string_view s, std::string_view property);

enum class Side { both, left, right };
/// Without the white space, or without the characters of `set`, at the ends.
std::string_view strip(std::string_view s, Side side);
std::string_view strip(std::string_view s, std::string_view set, Side side);

/// At runs of white space; at most `limit` cuts (negative: any number). From the right with `reverse`.
std::vector<std::string_view> split_white_space(std::string_view s, int64_t limit, bool reverse);
/// Where `part` first or last stands in `s`, or npos; in linear time, whatever the texts are.
std::size_t find(std::string_view s, std::string_view part);
std::size_t find_last(std::string_view s, std::string_view part);

/// At every `separator` (not empty).
std::vector<std::string_view> split(std::string_view s, std::string_view separator, int64_t limit, bool reverse);
std::vector<std::string_view> split_lines(std::string_view s, bool keep_ends);

/// At most `limit` replacements (negative: all); an empty `from` stands between all characters.
std::string replace(std::string_view s, std::string_view from, std::string_view to, int64_t limit);
/// Non-overlapping occurrences; an empty one is counted between all characters.
std::size_t count(std::string_view s, std::string_view part);

/// Python's repr: quotes as fit, escapes for what cannot be printed.
std::string repr(std::string_view s);
/// With &, <, >, ' and " as HTML entities.
std::string escape_html(std::string_view s);

}  // namespace unsloth::tokenizer::jinja::text
