// All matches of a pattern in a text.
#pragma once

#include <cstddef>
#include <string_view>

#include "tokenizer/regex.h"
#include "tokenizer/unicode.h"

namespace unsloth::tokenizer {

/// Calls `found(begin, end)` for every match of `pattern` in valid UTF-8, from left to right.
template <class Found>
void for_each_match(const Regex& pattern, std::string_view text, Found found) {
    std::size_t from = 0, begin = 0, end = 0;
    std::size_t last_end = std::string_view::npos;
    while (from <= text.size() && pattern.search(text, from, begin, end)) {
        from = end;
        if (begin == end) {
            // An empty match counts, but not right behind another match; then the search moves on by a
            // character.
            from = end < text.size() ? end + unicode::decode(text, end).size : end + 1;
            if (end == last_end) continue;
        }
        found(begin, end);
        last_end = end;
    }
}

/// Every place where `literal` (not empty) occurs, from left to right.
template <class Found>
void for_each_match(std::string_view literal, std::string_view text, Found found) {
    for (std::size_t at = text.find(literal); at != std::string_view::npos;) {
        found(at, at + literal.size());
        at = text.find(literal, at + literal.size());
    }
}

}  // namespace unsloth::tokenizer
