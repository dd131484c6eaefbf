// UTF-8 and the few Unicode properties that tokenizers ask for.
#pragma once

#include <unicode/utf8.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tokenizer/alignment.h"

namespace unsloth::tokenizer::unicode {

/// Code point at `at` of valid UTF-8 and its length in bytes.
struct Decoded {
    char32_t code_point;
    uint32_t size;
};
inline Decoded decode(std::string_view text, std::size_t at) {
    std::size_t end = at;
    UChar32 c = 0;
    U8_NEXT_UNSAFE(text, end, c);
    return {static_cast<char32_t>(c), static_cast<uint32_t>(end - at)};
}
/// Start of the code point that ends just before `end` (> 0) of valid UTF-8.
inline std::size_t previous(std::string_view text, std::size_t end) {
    U8_BACK_1_UNSAFE(text, end);
    return end;
}
inline void append(std::string& out, char32_t code_point) {
    char bytes[U8_MAX_LENGTH];
    int size = 0;
    U8_APPEND_UNSAFE(bytes, size, code_point);
    out.append(bytes, static_cast<std::size_t>(size));
}

/// The first byte at or after `at` that is not ASCII, or the size.
std::size_t skip_ascii(std::string_view text, std::size_t at);

/// White_Space; the same in every version since Unicode 6.3.
bool is_white_space(char32_t c);
/// \w of UTS 18: Alphabetic, marks, decimal digits, connectors, joiners (Unicode 16.0).
bool is_word(char32_t c);
/// What HF's pre-tokenizers mean by these words: ASCII punctuation and category P of Unicode 8.0; category N of 17.0.
bool is_punctuation(char32_t c);
bool is_numeric(char32_t c);
/// `text` without the characters at its ends that `removed` says.
template <class Removed>
std::string_view stripped(std::string_view text, bool left, bool right, Removed removed) {
    while (left && !text.empty()) {
        const Decoded d = decode(text, 0);
        if (!removed(d.code_point)) break;
        text.remove_prefix(d.size);
    }
    while (right && !text.empty()) {
        const std::size_t at = previous(text, text.size());
        if (!removed(decode(text, at).code_point)) break;
        text.remove_suffix(text.size() - at);
    }
    return text;
}

/// NFC (Unicode 9.0's tables, as HF tokenizers). Returns false, with `out` and `alignment` untouched, when the text is
/// in that form already, so that the usual case copies nothing.
bool compose(std::string_view text, std::string& out, Alignment& alignment);

/// Characters whose general category depends on the version of PCRE2 replaced by others of the same length in
/// bytes that have, in every version, the category of Unicode 16.0 (what HF's engine knows). Only for
/// matching. Returns false, with `out` untouched, when there is none.
bool shadow_categories(std::string_view text, std::string& out);

}  // namespace unsloth::tokenizer::unicode
