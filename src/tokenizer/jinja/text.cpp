#include "tokenizer/jinja/text.h"

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "tokenizer/jinja/value.h"
#include "tokenizer/unicode.h"

namespace unsloth::tokenizer::jinja::text {
namespace {

using unicode::Decoded;

template <class Drop>
std::string_view strip_if(std::string_view s, Side side, Drop drop) {
    const std::string_view kept = unicode::stripped(s, side != Side::right, side != Side::left, drop);
    charge_characters(s.size() - kept.size());
    return kept;
}

bool is_ascii(std::string_view s) {
    return std::none_of(s.begin(), s.end(), [](char c) { return c & 0x80; });
}

/// Most text is ASCII, where case is a matter of one bit.
std::string with_case(std::string_view s, char first, char last) {
    charge_bytes(s.size());
    std::string out(s);
    for (char& c : out) c = c >= first && c <= last ? static_cast<char>(c ^ 0x20) : c;
    return out;
}

icu::UnicodeString wide(std::string_view s) {
    charge_characters(s.size());
    return icu::UnicodeString::fromUTF8(icu::StringPiece(s.data(), static_cast<int32_t>(s.size())));
}

std::string narrow(const icu::UnicodeString& s) {
    std::string out;
    return s.toUTF8String(out);
}

/// The first character of `s` in title case.
std::string title_character(std::string_view s) {
    icu::UnicodeString c = wide(s.substr(0, byte_of(s, 1)));
    return narrow(c.toTitle(nullptr, icu::Locale::getRoot(), U_TITLECASE_NO_BREAK_ADJUSTMENT));
}

}  // namespace

std::size_t length(std::string_view s) {
    charge_bytes(s.size() / 4);
    return s.size() -
           static_cast<std::size_t>(std::count_if(s.begin(), s.end(), [](char c) { return (c & 0xC0) == 0x80; }));
}

std::vector<std::string_view> characters(std::string_view s) {
    std::vector<std::string_view> out;
    charge_characters(s.size());
    for (std::size_t at = 0; at < s.size();) {
        const std::size_t size = unicode::decode(s, at).size;
        out.push_back(s.substr(at, size));
        at += size;
    }
    return out;
}

std::size_t byte_of(std::string_view s, std::size_t index) {
    std::size_t at = 0;
    charge_characters(std::min(s.size(), index));
    for (; index > 0 && at < s.size(); --index) at += unicode::decode(s, at).size;
    return at;
}

std::u32string decode(std::string_view s) {
    std::u32string out;
    charge_characters(s.size());
    for (std::size_t at = 0; at < s.size();) {
        const Decoded d = unicode::decode(s, at);
        out += d.code_point;
        at += d.size;
    }
    return out;
}

bool is_space(char32_t c) {
    return unicode::is_white_space(c) || (c >= 0x1C && c <= 0x1F);
}

std::string_view strip(std::string_view s, Side side) {
    return strip_if(s, side, is_space);
}

std::string_view strip(std::string_view s, std::string_view set, Side side) {
    const std::u32string characters = decode(set);
    const std::unordered_set<char32_t> drop(characters.begin(), characters.end());
    return strip_if(s, side, [&](char32_t c) { return drop.count(c) != 0; });
}

std::vector<std::string_view> split_white_space(std::string_view s, int64_t limit) {
    std::vector<std::string_view> parts;
    const auto not_space = [](char32_t c) { return !is_space(c); };
    for (s = strip(s, Side::left); !s.empty(); s = strip(s, Side::left)) {
        const bool last = limit >= 0 && static_cast<int64_t>(parts.size()) == limit;  // keeps its white space
        const std::string_view rest = last ? s.substr(s.size()) : strip_if(s, Side::left, not_space);
        parts.push_back(s.substr(0, s.size() - rest.size()));
        check_sequence(parts.size());
        s = rest;
    }
    return parts;
}

std::size_t find(std::string_view s, std::string_view part) {
    if (part.empty()) return 0;
    const void* const found = ::memmem(s.data(), s.size(), part.data(), part.size());
    const std::size_t at =
        found ? static_cast<std::size_t>(static_cast<const char*>(found) - s.data()) : std::string_view::npos;
    charge_bytes(found ? at + part.size() : s.size());
    return at;
}

std::size_t find_last(std::string_view s, std::string_view part) {
    charge_characters(s.size() * std::max<std::size_t>(1, part.size() / 8));  // each place may need all of `part`
    return s.rfind(part);
}

std::vector<std::string_view> split(std::string_view s, std::string_view separator, int64_t limit) {
    std::vector<std::string_view> parts;
    while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
        const std::size_t at = find(s, separator);
        if (at == s.npos) break;
        check_sequence(parts.size() + 1);
        parts.push_back(s.substr(0, at));
        s.remove_prefix(at + separator.size());
    }
    parts.push_back(s);
    return parts;
}

std::vector<std::string_view> split_lines(std::string_view s) {
    const auto is_line_break = [](char32_t c) {
        return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    };
    std::vector<std::string_view> lines;
    std::size_t begin = 0;
    charge_characters(s.size());
    for (std::size_t at = 0; at < s.size();) {
        const Decoded d = unicode::decode(s, at);
        const std::size_t end = at + (s.compare(at, 2, "\r\n") == 0 ? 2 : d.size);
        if (is_line_break(d.code_point)) {
            lines.push_back(s.substr(begin, at - begin));
            check_sequence(lines.size());
            begin = end;
        }
        at = end;
    }
    if (begin < s.size()) lines.push_back(s.substr(begin));
    return lines;
}

std::string replace(std::string_view s, std::string_view from, std::string_view to, int64_t limit) {
    std::string out;
    if (from.empty()) fail("replacing an empty text is not supported in chat templates");
    for (int64_t done = 0; limit < 0 || done < limit; ++done) {
        const std::size_t at = find(s, from);
        if (at == std::string_view::npos) break;
        (out += s.substr(0, at)) += to;
        check_string(out.size());
        s.remove_prefix(at + from.size());
    }
    return out += s;
}

std::string escape_html(std::string_view s) {
    static constexpr std::string_view special = "&<>'\"";
    static constexpr std::string_view entities[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    std::string out;
    charge_characters(s.size());
    for (const char c : s) {
        const std::size_t at = special.find(c);
        out += at == special.npos ? std::string_view(&c, 1) : entities[at];
    }
    return out;
}

// What depends on the properties of characters: case and repr, by ICU.

std::string lower(std::string_view s) {
    return is_ascii(s) ? with_case(s, 'A', 'Z') : narrow(wide(s).toLower(icu::Locale::getRoot()));
}

std::string upper(std::string_view s) {
    return is_ascii(s) ? with_case(s, 'a', 'z') : narrow(wide(s).toUpper(icu::Locale::getRoot()));
}

std::string capitalize(std::string_view s) {
    if (s.empty()) return {};
    // Lowered together with the text before it, on which a final sigma depends.
    const std::string_view first = s.substr(0, byte_of(s, 1));
    return title_character(s) + lower(s).substr(lower(first).size());
}

std::string convert_runs(std::string_view s, bool (*kind)(char32_t), std::string (*convert)(std::string_view)) {
    std::string out;
    std::size_t begin = 0;
    charge(s.size());  // runs of one character each are the dearest
    for (std::size_t at = 0; at < s.size();) {
        const Decoded d = unicode::decode(s, at);
        if (kind(d.code_point) != kind(unicode::decode(s, begin).code_point)) {
            out += convert(s.substr(begin, at - begin));
            begin = at;
        }
        at += d.size;
    }
    return out += convert(s.substr(begin));
}

std::string title(std::string_view s) {
    const auto cased = [](char32_t c) { return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_CASED) != 0; };
    return convert_runs(s, cased, capitalize);
}

std::string repr(std::string_view s) {
    static constexpr std::u32string_view special = U"\n\r\t\\";
    const char quote = s.find('\'') != s.npos && s.find('"') == s.npos ? '"' : '\'';
    std::string out(1, quote);
    // str.isprintable: neither other (C) nor separator (Z), but for the space.
    const auto printable = [](char32_t c) {
        return c == ' ' || !(U_GET_GC_MASK(static_cast<UChar32>(c)) & (U_GC_C_MASK | U_GC_Z_MASK));
    };
    for (const char32_t c : decode(s)) {
        if (const std::size_t at = special.find(c); at != special.npos) {
            out += {'\\', "nrt\\"[at]};
        } else if (c == static_cast<char32_t>(quote)) {
            out += {'\\', quote};
        } else if (printable(c)) {
            unicode::append(out, c);
        } else {
            char escape[16];
            const auto number = static_cast<unsigned>(c);
            std::snprintf(escape, sizeof escape, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", number);
            out += escape;
        }
    }
    return out += quote;
}

}  // namespace unsloth::tokenizer::jinja::text
