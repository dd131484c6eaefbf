// Texts that come from outside: whether they are UTF-8, and what of them may go to a terminal.
#pragma once

#include <string>
#include <string_view>

namespace unsloth {

/// Where the first sequence that is not UTF-8 begins (overlong forms, surrogates and code points above U+10FFFF count
/// as such); text.size() when there is none.
std::size_t first_invalid_utf8(std::string_view text);

/// Length of what one U+FFFD replaces, at the front of a text that begins with a broken sequence.
std::size_t broken_utf8_length(std::string_view text);

/// Each maximal part of a broken sequence becomes one U+FFFD (the Unicode Standard's recommendation, chapter 3.9; what
/// Python's errors="replace" does).
std::string repair_utf8(std::string_view text);

/// A text that can steer no terminal: control characters but line feeds and tabs, and those that turn the direction of
/// writing, become \uNNNN, which JSON reads as the same; bytes that are not UTF-8 become \xNN. All that is printed goes
/// through here (log::write, log::last_words, app::print).
std::string printable(std::string_view text);

/// printable(), with all lines after the first one indented, so that none can pass for a message of its own.
std::string printable_message(std::string_view text);

}  // namespace unsloth
