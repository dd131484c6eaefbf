#include "tokenizer/unicode.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <bitset>
#include <cstring>
#include <memory>

#include "tokenizer/category_drift.h"

namespace unsloth::tokenizer::unicode {
namespace {

uint8_t byte_at(std::string_view text, std::size_t i) {
    return static_cast<uint8_t>(text[i]);
}

/// `c`, or the character with its category of Unicode 16.0 that every library knows.
char32_t stand_in(char32_t c) {
    static const auto drifting = [] {  // one bit a character of the basic plane: each is looked up
        auto set = std::make_unique<std::bitset<0x10000>>();
        for (const Replacement& row : category_drift()) {
            for (char32_t i = row.first; i <= row.last && i < 0x10000; ++i) set->set(i);
        }
        return set;
    }();
    if (c < 0x10000 && !(*drifting)[c]) return c;
    const std::vector<Replacement>& table = category_drift();
    const auto row = std::partition_point(table.begin(), table.end(), [c](const Replacement& r) { return r.last < c; });
    return row != table.end() && row->first <= c ? row->replacement : c;
}

bool known_to_unicode(int version, char32_t c) {
    UVersionInfo age;
    u_charAge(c, age);
    return age[0] != 0 && age[0] <= version;
}

}  // namespace

std::size_t skip_ascii(std::string_view text, std::size_t at) {
    while (at + 8 <= text.size()) {
        uint64_t word;
        std::memcpy(&word, text.data() + at, 8);
        if (word & 0x8080808080808080u) break;
        at += 8;
    }
    while (at < text.size() && byte_at(text, at) < 0x80) ++at;
    return at;
}

Decoded decode(std::string_view text, std::size_t at) {
    const auto continuation = [&](std::size_t i) { return static_cast<char32_t>(byte_at(text, at + i) & 0x3F); };
    const char32_t lead = byte_at(text, at);
    if (lead < 0x80) return {lead, 1};
    if (lead < 0xE0) return {(lead & 0x1F) << 6 | continuation(1), 2};
    if (lead < 0xF0) return {(lead & 0x0F) << 12 | continuation(1) << 6 | continuation(2), 3};
    return {(lead & 0x07) << 18 | continuation(1) << 12 | continuation(2) << 6 | continuation(3), 4};
}

std::size_t previous(std::string_view text, std::size_t end) {
    do --end;
    while (end > 0 && (byte_at(text, end) & 0xC0) == 0x80);
    return end;
}

void append(std::string& out, char32_t c) {
    const auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
    if (c < 0x80) {
        put(c);
    } else if (c < 0x800) {
        put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
        put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
    } else {
        put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F)), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
    }
}

bool is_white_space(char32_t c) {
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_word(char32_t c) {
    const char32_t known = stand_in(c);
    return u_hasBinaryProperty(known, UCHAR_ALPHABETIC) ||
           (U_GET_GC_MASK(known) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) || c == 0x200C || c == 0x200D;
}

bool is_punctuation(char32_t c) {
    if (c < 0x80) return u_ispunct(c) || (U_GET_GC_MASK(c) & U_GC_S_MASK);
    if (c == 0x166D || c == 0x111C9) return true;  // in another category since Unicode 12.0 and 11.0
    return known_to_unicode(8, c) && (U_GET_GC_MASK(c) & U_GC_P_MASK);
}

bool is_accent(char32_t c) {
    if (c == 0x1CF2 || c == 0x1CF3) return true;  // in another category since Unicode 12.0
    return known_to_unicode(9, c) && (U_GET_GC_MASK(c) & U_GC_M_MASK) && c != 0x111C9;
}

void append_lowercase(std::string& out, char32_t c) {
    if (c == 0x130) {  // the only character whose lower case is two: i and a dot above
        out += "i\u0307";
    } else {
        append(out, static_cast<char32_t>(u_tolower(c)));
    }
}

bool is_numeric(char32_t c) {
    // The digits and numbers that Unicode 17.0 added, which HF's compiler knows.
    if ((c >= 0x11DE0 && c <= 0x11DE9) || (c >= 0x16FF4 && c <= 0x16FF6)) return true;
    return U_GET_GC_MASK(stand_in(c)) & U_GC_N_MASK;
}

bool shadow_categories(std::string_view text, std::string& out) {
    bool found = false;
    for (std::size_t at = 0; (at = skip_ascii(text, at)) < text.size();) {
        const Decoded d = decode(text, at);
        if (const char32_t known = stand_in(d.code_point); known != d.code_point) {
            if (!found) out = text;
            found = true;
            std::string bytes;
            append(bytes, known);
            out.replace(at, d.size, bytes);
        }
        at += d.size;
    }
    return found;
}

}  // namespace unsloth::tokenizer::unicode
