// What Replace and Split look for, and all its matches in a text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/regex.h"
#include "tokenizer/unicode.h"

namespace unsloth::tokenizer {

/// A regular expression, or else a literal that is not empty.
struct Pattern {
    std::optional<Regex> regex;
    std::string literal;
};

/// Calls `found(begin, end)` for every match of `pattern` in valid UTF-8, from left to right.
template <class Found>
void for_each_match(const Regex& pattern, std::string_view text, Found found) {
    std::string shadow;
    if (unicode::shadow_categories(text, shadow)) text = shadow;
    std::size_t from = 0, begin = 0, end = 0;
    std::size_t last_end = std::string_view::npos;
    while (from <= text.size() && pattern.search(text, from, begin, end)) {
        from = end;
        if (begin == end) {
            // An empty match counts, but not right behind another match; then the search moves on by a character.
            from = end < text.size() ? end + unicode::decode(text, end).size : end + 1;
            if (end == last_end) continue;
        }
        found(begin, end);
        last_end = end;
    }
}

template <class Found>
void for_each_match(const Pattern& pattern, std::string_view text, Found found) {
    if (pattern.regex) return for_each_match(*pattern.regex, text, found);
    const std::string_view literal = pattern.literal;
    for (std::size_t at = text.find(literal); at != text.npos; at = text.find(literal, at + literal.size()))
        found(at, at + literal.size());
}

}  // namespace unsloth::tokenizer
