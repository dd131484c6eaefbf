#include "unsloth/core/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace unsloth {
namespace {

struct Sequence {
    std::size_t length = 0;  ///< of the character, or of the longest part of it that could have become one
    bool valid = false;
};

/// The sequence at the front of a text that is not empty (table 3-7 of the Unicode Standard).
Sequence sequence_at(std::string_view text) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char lead = byte(0);
    if (lead < 0x80) return {1, true};
    const std::size_t length = lead >= 0xC2 && lead <= 0xDF   ? 2
                               : lead >= 0xE0 && lead <= 0xEF ? 3
                               : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                              : 0;
    if (length == 0) return {1, false};
    // The second byte's range excludes overlong forms, surrogates and code points above U+10FFFF.
    const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    for (std::size_t i = 1; i < length; ++i) {
        if (i >= text.size() || byte(i) < (i == 1 ? low : 0x80) || byte(i) > (i == 1 ? high : 0xBF)) return {i, false};
    }
    return {length, true};
}

/// Of a valid sequence.
char32_t code_point(std::string_view sequence) {
    const auto lead = static_cast<unsigned char>(sequence[0]);
    if (sequence.size() == 1) return lead;
    char32_t point = lead & (0x7Fu >> sequence.size());
    for (const char c : sequence.substr(1)) point = point << 6 | (static_cast<unsigned char>(c) & 0x3Fu);
    return point;
}

bool steers(char32_t c) {
    return (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7F && c <= 0x9F) ||  // C0, delete and C1
           (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);        // embeddings, overrides, isolates
}

}  // namespace

std::size_t first_invalid_utf8(std::string_view text) {
    std::size_t at = 0;
    while (at < text.size()) {
        // Most text is ASCII: eight bytes at a time.
        constexpr uint64_t high_bits = 0x8080808080808080u;
        uint64_t word = 0;
        if (at + sizeof word <= text.size() &&
            (std::memcpy(&word, text.data() + at, sizeof word), (word & high_bits) == 0)) {
            at += sizeof word;
            continue;
        }
        const Sequence sequence = sequence_at(text.substr(at));
        if (!sequence.valid) return at;
        at += sequence.length;
    }
    return at;
}

std::size_t broken_utf8_length(std::string_view text) {
    return sequence_at(text).length;
}

std::string repair_utf8(std::string_view text) {
    std::string repaired;
    repaired.reserve(text.size());
    while (!text.empty()) {
        const std::size_t valid = first_invalid_utf8(text);
        repaired += text.substr(0, valid);
        text.remove_prefix(valid);
        if (text.empty()) break;
        repaired += "\xEF\xBF\xBD";
        text.remove_prefix(broken_utf8_length(text));
    }
    return repaired;
}

std::string printable(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    char escaped[8];
    while (!text.empty()) {
        const auto plain = [](char c) { return (c >= ' ' && c < 0x7F) || c == '\n' || c == '\t'; };
        const auto end = std::find_if_not(text.begin(), text.end(), plain);  // most of what is printed
        out += std::string_view(text.begin(), end);
        text = std::string_view(end, text.end());
        if (text.empty()) break;
        const Sequence sequence = sequence_at(text);
        const std::string_view taken = text.substr(0, sequence.length);
        text.remove_prefix(sequence.length);
        if (!sequence.valid) {
            for (const char c : taken) {
                std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
                out += escaped;
            }
        } else if (const char32_t c = code_point(taken); steers(c)) {
            std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c) & 0xFFFFu);
            out += escaped;
        } else {
            out += taken;
        }
    }
    return out;
}

std::string printable_message(std::string_view text) {
    std::string out = printable(text);
    for (std::size_t at = 0; (at = out.find('\n', at)) != std::string::npos;)
        if (++at < out.size() && out[at] != ' ' && out[at] != '\n') out.insert(at, "  ");
    return out;
}

}  // namespace unsloth
