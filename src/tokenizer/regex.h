// What Replace and Split look for: literals, kinds of characters, and regular expressions as tokenizer.json means them
// (Oniguruma's Ruby syntax, Unicode 16.0), run by PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/unicode.h"

struct pcre2_real_code_8;

namespace unsloth::tokenizer {

/// A compiled pattern; matching is safe from any thread.
class Regex {
  public:
    /// Accepts what means the same to Oniguruma and PCRE2, and translates what tokenizers use besides: sets within
    /// sets, \w and \b, scripts, {n,m}+ (a repetition of the repetition). Anything else is an input Error that names
    /// the construct and `where` (file and key).
    Regex(std::string_view source, const std::string& where);
    /// As the file has it.
    const std::string& source() const { return source_; }

    /// Finds the first match at or after `from` in valid UTF-8. False when there is none.
    /// Input Error when the pattern takes too many steps.
    bool search(std::string_view text, std::size_t from, std::size_t& begin, std::size_t& end) const;

  private:
    std::shared_ptr<pcre2_real_code_8> code_;
    bool compiled_to_machine_code_ = false;
    std::string source_, where_;
};

/// A regular expression, or else single characters of a kind, or else a literal that is not empty.
struct Pattern {
    std::optional<Regex> regex;
    std::string literal;
    bool (*characters)(char32_t) = nullptr;
};

/// Calls `found(begin, end)` for every match of `pattern` in valid UTF-8, from left to right.
template <class Found>
void for_each_match(const Regex& pattern, std::string_view text, Found found) {
    std::string shadow;
    if (unicode::shadow_categories(text, shadow)) text = shadow;
    std::size_t from = 0, begin = 0, end = 0;
    std::size_t last_end = std::string_view::npos;
    while (from <= text.size() && pattern.search(text, from, begin, end)) {
        from = end;
        if (begin == end) {
            // An empty match counts, but not right after another match; then the search moves by a character.
            from = end < text.size() ? end + unicode::decode(text, end).size : end + 1;
            if (end == last_end) continue;
        }
        found(begin, end);
        last_end = end;
    }
}

template <class Found>
void for_each_match(const Pattern& pattern, std::string_view text, Found found) {
    if (pattern.regex) return for_each_match(*pattern.regex, text, found);
    for (std::size_t at = 0, size = 0; pattern.characters && at < text.size(); at += size) {
        const unicode::Decoded d = unicode::decode(text, at);
        size = d.size;
        if (pattern.characters(d.code_point)) found(at, at + size);
    }
    if (pattern.characters) return;
    const std::string_view literal = pattern.literal;
    for (std::size_t at = text.find(literal); at != text.npos; at = text.find(literal, at + literal.size()))
        found(at, at + literal.size());
}

}  // namespace unsloth::tokenizer
