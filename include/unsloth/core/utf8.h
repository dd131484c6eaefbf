// Whether bytes are UTF-8, and what to make of those that are not.
#pragma once

#include <string>
#include <string_view>

namespace unsloth {

/// Where the first sequence that is not UTF-8 begins (overlong forms, surrogates and code points above U+10FFFF count
/// as such); text.size() when there is none.
std::size_t first_invalid_utf8(std::string_view text);

/// Each maximal part of a broken sequence becomes one U+FFFD (the Unicode Standard's recommendation, chapter 3.9; what
/// Python's errors="replace" does).
std::string repair_utf8(std::string_view text);

/// For a terminal: control characters but line feeds and tabs, and bytes that are not UTF-8, become \xNN.
std::string printable(std::string_view text);

}  // namespace unsloth
