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

std::string lower(std::string_view s);
std::string upper(std::string_view s);
std::string capitalize(std::string_view s);  ///< first character in title case, the rest lower
std::string title(std::string_view s);       ///< every run of cased characters capitalized (Jinja's filter differs)
/// `convert` of each run of characters of which `kind` says the same.
std::string convert_runs(std::string_view s, bool (*kind)(char32_t), std::string (*convert)(std::string_view));

bool is_space(char32_t c);  ///< str.isspace, and \s of Python's regular expressions

enum class Side { both, left, right };
/// Without the white space, or without the characters of `set`, at the ends.
std::string_view strip(std::string_view s, Side side);
std::string_view strip(std::string_view s, std::string_view set, Side side);

/// At runs of white space; at most `limit` cuts (negative: any number).
std::vector<std::string_view> split_white_space(std::string_view s, int64_t limit);
/// At every `separator` (not empty).
std::vector<std::string_view> split(std::string_view s, std::string_view separator, int64_t limit);
/// Without the line ends.
std::vector<std::string_view> split_lines(std::string_view s);
/// The first or last position of `part` in `s`, or npos; a search charges steps by how long it may take.
std::size_t find(std::string_view s, std::string_view part);
std::size_t find_last(std::string_view s, std::string_view part);

/// At most `limit` replacements (negative: all); Failure for an empty `from`.
std::string replace(std::string_view s, std::string_view from, std::string_view to, int64_t limit);

/// Python's repr: quotes as fit, escapes for what cannot be printed.
std::string repr(std::string_view s);
/// With &, <, >, ' and " as HTML entities.
std::string escape_html(std::string_view s);

}  // namespace unsloth::tokenizer::jinja::text
