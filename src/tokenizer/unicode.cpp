#include "tokenizer/unicode.h"

#include <unicode/bytestream.h>
#include <unicode/edits.h>
#include <unicode/errorcode.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <bitset>
#include <cstring>
#include <iterator>
#include <memory>

#include "tokenizer/category_drift.h"
#include "unsloth/core/error.h"

namespace unsloth::tokenizer::unicode {
namespace {

uint8_t byte_at(std::string_view text, std::size_t i) {
    return static_cast<uint8_t>(text[i]);
}

bool known_to_unicode(int version, char32_t c) {
    UVersionInfo age;
    u_charAge(c, age);
    return age[0] != 0 && age[0] <= version;
}

/// `c`, or a character with its category of Unicode 16.0 that every library knows.
char32_t look_up_stand_in(char32_t c) {
    const auto* const row = std::partition_point(std::begin(category_drift), std::end(category_drift),
                                                 [c](const Replacement& r) { return r.last < c; });
    if (row != std::end(category_drift) && row->first <= c) return row->replacement;
    if (known_to_unicode(16, c)) return c;
    return c < 0x800 ? 0x378 : c < 0x10000 ? 0xFDD0 : 0x1FFFE;  // assigned to nothing in any version
}

char32_t stand_in(char32_t c) {
    static const auto drifting = [] {  // one bit a character of the basic plane: each is looked up
        auto set = std::make_unique<std::bitset<0x10000>>();
        for (char32_t i = 0; i < 0x10000; ++i) (*set)[i] = look_up_stand_in(i) != i;
        return set;
    }();
    return c < 0x10000 && !(*drifting)[c] ? c : look_up_stand_in(c);
}

/// Stops the program's work where ICU fails.
class Status : public icu::ErrorCode {
  public:
    void check() const { UNSLOTH_CHECK(isSuccess(), "ICU: ", errorName()); }
};

/// NFC as Unicode 9.0 knew it: characters that came later stay as they are.
const icu::Normalizer2& nfc() {
    static const icu::UnicodeSet known = [] {
        Status status;
        icu::UnicodeSet set(u"[:age=9.0:]", status);
        status.check();
        set.freeze();
        return set;
    }();
    static const icu::FilteredNormalizer2 form = [] {
        Status status;
        const icu::Normalizer2* const newest = icu::Normalizer2::getNFCInstance(status);
        status.check();
        return icu::FilteredNormalizer2(*newest, known);
    }();
    return form;
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

bool is_white_space(char32_t c) {
    return u_isUWhiteSpace(static_cast<UChar32>(c));
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

bool compose(std::string_view text, std::string& out, Alignment& alignment) {
    if (skip_ascii(text, 0) == text.size()) return false;
    Status status;
    if (nfc().isNormalizedUTF8(text, status)) return false;
    icu::Edits edits;
    icu::StringByteSink sink(&out);
    nfc().normalizeUTF8(0, text, sink, &edits, status);
    for (auto edit = edits.getFineIterator(); edit.next(status);) {
        if (edit.hasChange()) {
            alignment.append_block(static_cast<std::size_t>(edit.newLength()),
                                   static_cast<std::size_t>(edit.oldLength()));
        } else {
            alignment.append_exact(static_cast<std::size_t>(edit.oldLength()));
        }
    }
    status.check();
    return true;
}

}  // namespace unsloth::tokenizer::unicode
