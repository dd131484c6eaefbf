#include "tokenizer/jinja/text.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_set>

#include "tokenizer/jinja/limits.h"
#include "tokenizer/unicode.h"

namespace unsloth::tokenizer::jinja::text {
namespace {

using unicode::Decoded;

bool is_continuation(char c) {
    return (c & 0xC0) == 0x80;
}

bool is_line_break(char32_t c) {
    return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

template <class Drop>
std::string_view strip_if(std::string_view s, Side side, Drop drop) {
    const std::size_t before = s.size();
    while (side != Side::right && !s.empty()) {
        const Decoded d = unicode::decode(s, 0);
        if (!drop(d.code_point)) break;
        s.remove_prefix(d.size);
    }
    while (side != Side::left && !s.empty()) {
        const std::size_t at = unicode::previous(s, s.size());
        if (!drop(unicode::decode(s, at).code_point)) break;
        s.remove_suffix(s.size() - at);
    }
    charge_characters(before - s.size());
    return s;
}

}  // namespace

std::size_t length(std::string_view s) {
    charge_bytes(s.size() / 4);
    return s.size() - static_cast<std::size_t>(std::count_if(s.begin(), s.end(), is_continuation));
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

std::string encode(std::u32string_view s) {
    std::string out;
    for (const char32_t c : s) unicode::append(out, c);
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

std::vector<std::string_view> split_white_space(std::string_view s, int64_t limit, bool reverse) {
    std::vector<std::string_view> parts;
    const auto not_space = [](char32_t c) { return !is_space(c); };
    for (;;) {
        s = strip(s, reverse ? Side::right : Side::left);
        if (s.empty()) break;
        if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
            parts.push_back(s);  // the far end keeps its white space
            break;
        }
        const std::string_view rest = strip_if(s, reverse ? Side::right : Side::left, not_space);
        parts.push_back(reverse ? s.substr(rest.size()) : s.substr(0, s.size() - rest.size()));
        check_sequence(parts.size());
        s = rest;
    }
    if (reverse) std::reverse(parts.begin(), parts.end());
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
    constexpr std::size_t short_part = 8;
    if (part.size() <= short_part) {
        const std::size_t at = s.rfind(part);
        charge_characters(at == std::string_view::npos ? s.size() : s.size() - at);
        return at;
    }
    charge_characters(s.size());
    const std::string backward(s.rbegin(), s.rend()), wanted(part.rbegin(), part.rend());
    const std::size_t at = find(backward, wanted);
    return at == std::string_view::npos ? at : s.size() - at - part.size();
}

std::vector<std::string_view> split(std::string_view s, std::string_view separator, int64_t limit, bool reverse) {
    std::vector<std::string_view> parts;
    while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
        const std::size_t at = reverse ? find_last(s, separator) : find(s, separator);
        if (at == std::string_view::npos) break;
        check_sequence(parts.size() + 1);
        parts.push_back(reverse ? s.substr(at + separator.size()) : s.substr(0, at));
        s = reverse ? s.substr(0, at) : s.substr(at + separator.size());
    }
    parts.push_back(s);
    if (reverse) std::reverse(parts.begin(), parts.end());
    return parts;
}

std::vector<std::string_view> split_lines(std::string_view s, bool keep_ends) {
    std::vector<std::string_view> lines;
    std::size_t begin = 0;
    charge_characters(s.size());
    for (std::size_t at = 0; at < s.size();) {
        const Decoded d = unicode::decode(s, at);
        if (!is_line_break(d.code_point)) {
            at += d.size;
            continue;
        }
        const std::size_t end = at + (s.compare(at, 2, "\r\n") == 0 ? 2 : d.size);
        lines.push_back(s.substr(begin, (keep_ends ? end : at) - begin));
        check_sequence(lines.size());
        begin = at = end;
    }
    if (begin < s.size()) lines.push_back(s.substr(begin));
    return lines;
}

std::string replace(std::string_view s, std::string_view from, std::string_view to, int64_t limit) {
    std::string out;
    if (from.empty()) {
        const std::vector<std::string_view> parts = characters(s);
        for (std::size_t i = 0; i <= parts.size(); ++i) {
            if (limit < 0 || static_cast<int64_t>(i) < limit) out += to;
            check_string(out.size());
            if (i < parts.size()) out += parts[i];
        }
        return out;
    }
    for (int64_t done = 0; limit < 0 || done < limit; ++done) {
        const std::size_t at = find(s, from);
        if (at == std::string_view::npos) break;
        (out += s.substr(0, at)) += to;
        check_string(out.size());
        s.remove_prefix(at + from.size());
    }
    return out += s;
}

std::size_t count(std::string_view s, std::string_view part) {
    if (part.empty()) return length(s) + 1;
    std::size_t times = 0;
    for (std::size_t at = 0; (at = find(s, part)) != std::string_view::npos; ++times) s.remove_prefix(at + part.size());
    return times;
}

std::string escape_html(std::string_view s) {
    std::string out;
    charge_characters(s.size());
    for (const char c : s) {
        switch (c) {
            case '&':
                out += "&amp;";
                break;
            case '<':
                out += "&lt;";
                break;
            case '>':
                out += "&gt;";
                break;
            case '\'':
                out += "&#39;";
                break;
            case '"':
                out += "&#34;";
                break;
            default:
                out += c;
        }
    }
    return out;
}

}  // namespace unsloth::tokenizer::jinja::text
