// UTF-8 and the few Unicode properties that tokenizers ask for.
#pragma once

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
Decoded decode(std::string_view text, std::size_t at);
/// Start of the code point that ends just before `end` (> 0) of valid UTF-8.
std::size_t previous(std::string_view text, std::size_t end);
void append(std::string& out, char32_t code_point);

/// The first byte at or behind `at` that is not ASCII, or the size.
std::size_t skip_ascii(std::string_view text, std::size_t at);

/// Length of the longest prefix that is valid UTF-8 (no surrogates, no overlong forms, at most U+10FFFF).
std::size_t valid_prefix(std::string_view text);
/// Valid UTF-8: every maximal cut-off sequence (Unicode 16.0, table 3-8, "substitution of maximal subparts")
/// becomes one U+FFFD. Appends to `out`; `alignment` (may be null) maps it back.
void append_lossy(std::string& out, std::string_view bytes, Alignment* alignment = nullptr);

/// White_Space; the same in every version since Unicode 6.3.
bool is_white_space(char32_t c);
/// \w of UTS 18: Alphabetic, marks, decimal digits, connectors, joiners (Unicode 16.0).
bool is_word(char32_t c);
// What the reference's normalizers and pre-tokenizers mean by these words (see make_unicode_mappings.py).
bool is_punctuation(char32_t c);
bool is_numeric(char32_t c);
bool is_accent(char32_t c);
void append_lowercase(std::string& out, char32_t c);
/// What Python's str.strip() and Jinja's trim remove: White_Space and U+001C to U+001F.
std::string_view strip(std::string_view text);

enum class NormalForm { nfc, nfd, nfkc, nfkd };
/// A Unicode normal form (Unicode 9.0's tables, as HF tokenizers). Returns false, with `out` and `alignment`
/// untouched, when the text is in that form already, so that the usual case copies nothing.
bool normalize(NormalForm form, std::string_view text, std::string& out, Alignment& alignment);

/// Characters whose general category depends on the version of PCRE2 replaced by others of the same length in
/// bytes that have, in every version, the category of Unicode 16.0 (what HF's engine knows). Only for
/// matching. Returns false, with `out` untouched, when there is none.
bool shadow_categories(std::string_view text, std::string& out);

}  // namespace unsloth::tokenizer::unicode
