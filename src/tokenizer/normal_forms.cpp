// NFC (The Unicode Standard, section 3.11 and annex 15), by ICU restricted to Unicode 9.0.
#include <unicode/bytestream.h>
#include <unicode/edits.h>
#include <unicode/errorcode.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>

#include "tokenizer/unicode.h"
#include "unsloth/core/error.h"

namespace unsloth::tokenizer::unicode {
namespace {

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
