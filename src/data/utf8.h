// Whether bytes are UTF-8, and a repair of those that are not.
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

}  // namespace unsloth
