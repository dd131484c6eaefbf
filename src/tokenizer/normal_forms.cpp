// NFC, NFD, NFKC and NFKD (The Unicode Standard, section 3.11 and annex 15), by ICU restricted to Unicode 9.0.
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <bitset>
#include <iterator>
#include <memory>
#include <mutex>

#include "tokenizer/unicode.h"
#include "unsloth/core/error.h"

namespace unsloth::tokenizer::unicode {
namespace {

void check(UErrorCode status) {
    UNSLOTH_CHECK(U_SUCCESS(status), "ICU: ", u_errorName(status));
}

icu::UnicodeSet set_of(const char* pattern) {
    UErrorCode status = U_ZERO_ERROR;
    icu::UnicodeSet set(icu::UnicodeString::fromUTF8(pattern), status);
    check(status);
    return set;
}

/// A normal form as Unicode 9.0 knew it: characters that came later stay as they are.
class Form {
  public:
    Form(const icu::Normalizer2* (*instance)(UErrorCode&), const char* unstable)
        : known_(set_of("[:age=9.0:]")), unstable_(set_of(unstable)) {
        UErrorCode status = U_ZERO_ERROR;
        const icu::Normalizer2* newest = instance(status);
        check(status);
        unstable_.retainAll(known_).freeze();
        known_.freeze();
        normalizer_ = std::make_unique<icu::FilteredNormalizer2>(*newest, known_);
        for (UChar32 c = 0; c < 0x10000; ++c) basic_unstable_[static_cast<std::size_t>(c)] = unstable_.contains(c);
    }
    static const Form& get(NormalForm form) {
        using icu::Normalizer2;
        struct Source {
            const Normalizer2* (*instance)(UErrorCode&);
            const char* unstable;
        };
        static constexpr Source sources[] = {{Normalizer2::getNFCInstance, "[[:^ccc=0:][:^NFC_QC=Yes:]]"},
                                             {Normalizer2::getNFDInstance, "[[:^ccc=0:][:^NFD_QC=Yes:]]"},
                                             {Normalizer2::getNFKCInstance, "[[:^ccc=0:][:^NFKC_QC=Yes:]]"},
                                             {Normalizer2::getNFKDInstance, "[[:^ccc=0:][:^NFKD_QC=Yes:]]"}};
        static std::once_flag once[std::size(sources)];
        static std::unique_ptr<const Form> forms[std::size(sources)];
        const auto i = static_cast<std::size_t>(form);
        std::call_once(once[i], [&] { forms[i] = std::make_unique<Form>(sources[i].instance, sources[i].unstable); });
        return *forms[i];
    }
    /// A text without these is in the form, and a run of them never reaches over another character.
    bool unstable(char32_t c) const {
        return c < 0x10000 ? basic_unstable_[c] : unstable_.contains(static_cast<UChar32>(c));
    }
    /// Nothing before `c` is reordered or composed with what begins there.
    bool begins_anew(char32_t c) const { return normalizer_->hasBoundaryBefore(static_cast<UChar32>(c)); }
    std::string normal(std::string_view text) const {
        UErrorCode status = U_ZERO_ERROR;
        const icu::StringPiece piece(text.data(), static_cast<int32_t>(text.size()));
        std::string out;
        normalizer_->normalize(icu::UnicodeString::fromUTF8(piece), status).toUTF8String(out);
        check(status);
        return out;
    }

  private:
    icu::UnicodeSet known_, unstable_;
    std::bitset<0x10000> basic_unstable_;           ///< every character outside ASCII is looked up
    std::unique_ptr<icu::Normalizer2> normalizer_;  ///< refers to known_
};

void normalize_piece(const Form& form, std::string_view piece, std::string& out, Alignment& alignment) {
    const std::string normal = form.normal(piece);
    out += normal;
    // Only what really changed loses its exact place.
    const auto in_common = std::mismatch(piece.begin(), piece.end(), normal.begin(), normal.end()).first;
    auto prefix = static_cast<std::size_t>(in_common - piece.begin());
    while (prefix > 0 && prefix < piece.size() && (static_cast<uint8_t>(piece[prefix]) & 0xC0) == 0x80) --prefix;
    alignment.append_exact(prefix);
    alignment.append_block(normal.size() - prefix, piece.size() - prefix);
}

/// In pieces as small as possible, so that the alignment is fine.
void normalize_chunk(const Form& form, std::string_view chunk, std::string& out, Alignment& alignment) {
    std::size_t begin = 0;
    for (std::size_t at = 0; at < chunk.size();) {
        const Decoded d = decode(chunk, at);
        if (begin < at && form.begins_anew(d.code_point)) {
            normalize_piece(form, chunk.substr(begin, at - begin), out, alignment);
            begin = at;
        }
        at += d.size;
    }
    normalize_piece(form, chunk.substr(begin), out, alignment);
}

}  // namespace

bool normalize(NormalForm which, std::string_view text, std::string& out, Alignment& alignment) {
    if (skip_ascii(text, 0) == text.size()) return false;
    const Form& form = Form::get(which);
    std::string result;
    Alignment map;
    std::size_t copied = 0;   // everything before is in `result`
    std::size_t starter = 0;  // the last stable character seen: an unstable one may compose with it
    for (std::size_t at = 0; at < text.size();) {
        if (static_cast<uint8_t>(text[at]) < 0x80) {
            const std::size_t next = skip_ascii(text, at);
            starter = next - 1;
            at = next;
            continue;
        }
        Decoded d = decode(text, at);
        if (!form.unstable(d.code_point)) {
            starter = at;
            at += d.size;
            continue;
        }
        while (at < text.size() && form.unstable((d = decode(text, at)).code_point)) at += d.size;
        result += text.substr(copied, starter - copied);
        map.append_exact(starter - copied);
        normalize_chunk(form, text.substr(starter, at - starter), result, map);
        copied = starter = at;
    }
    if (copied == 0 || result == text.substr(0, copied)) return false;
    result += text.substr(copied);
    map.append_exact(text.size() - copied);
    out = std::move(result);
    alignment = std::move(map);
    return true;
}

}  // namespace unsloth::tokenizer::unicode
