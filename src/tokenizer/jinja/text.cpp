#include "tokenizer/jinja/text.h"

#include <algorithm>
#include <array>

#include "tokenizer/unicode.h"

namespace unsloth::jinja::text {
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
    return s;
}

}  // namespace

std::size_t length(std::string_view s) {
    return s.size() - static_cast<std::size_t>(std::count_if(s.begin(), s.end(), is_continuation));
}

std::vector<std::string_view> characters(std::string_view s) {
    std::vector<std::string_view> out;
    for (std::size_t at = 0; at < s.size();) {
        const std::size_t size = unicode::decode(s, at).size;
        out.push_back(s.substr(at, size));
        at += size;
    }
    return out;
}

std::size_t byte_of(std::string_view s, std::size_t index) {
    std::size_t at = 0;
    for (; index > 0 && at < s.size(); --index) at += unicode::decode(s, at).size;
    return at;
}

std::u32string decode(std::string_view s) {
    std::u32string out;
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
    const std::u32string drop = decode(set);
    return strip_if(s, side, [&](char32_t c) { return drop.find(c) != std::u32string::npos; });
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
        s = rest;
    }
    if (reverse) std::reverse(parts.begin(), parts.end());
    return parts;
}

std::vector<std::string_view> split(std::string_view s, std::string_view separator, int64_t limit,
                                    bool reverse) {
    std::vector<std::string_view> parts;
    while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
        const std::size_t at = reverse ? s.rfind(separator) : s.find(separator);
        if (at == std::string_view::npos) break;
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
    for (std::size_t at = 0; at < s.size();) {
        const Decoded d = unicode::decode(s, at);
        if (!is_line_break(d.code_point)) {
            at += d.size;
            continue;
        }
        const std::size_t end = at + (s.compare(at, 2, "\r\n") == 0 ? 2 : d.size);
        lines.push_back(s.substr(begin, (keep_ends ? end : at) - begin));
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
            if (i < parts.size()) out += parts[i];
        }
        return out;
    }
    const std::vector<std::string_view> parts = split(s, from, limit, false);
    for (std::size_t i = 0; i < parts.size(); ++i) {
        if (i > 0) out += to;
        out += parts[i];
    }
    return out;
}

std::size_t count(std::string_view s, std::string_view part) {
    return part.empty() ? length(s) + 1 : split(s, part, -1, false).size() - 1;
}

std::string escape_html(std::string_view s) {
    std::string out;
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

}  // namespace unsloth::jinja::text
