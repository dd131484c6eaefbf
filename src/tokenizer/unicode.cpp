#include "tokenizer/unicode.h"

#include <algorithm>
#include <cstring>

#include "tokenizer/code_point_set.h"
#include "tokenizer/unicode_tables.h"

namespace unsloth::tokenizer::unicode {
namespace {

constexpr char32_t replacement_character = 0xFFFD;

uint8_t byte_at(std::string_view text, std::size_t i) {
    return static_cast<uint8_t>(text[i]);
}

/// Length of the valid sequence at `at`, or minus the length of the maximal subpart to be replaced.
int sequence_length(std::string_view text, std::size_t at) {
    const uint8_t lead = byte_at(text, at);
    if (lead < 0x80) return 1;
    if (lead < 0xC2 || lead > 0xF4) return -1;
    const int size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    // The second byte's range excludes overlong forms, surrogates and what lies beyond U+10FFFF.
    uint8_t low = 0x80, high = 0xBF;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
    for (int i = 1; i < size; ++i, low = 0x80, high = 0xBF) {
        if (at + i >= text.size() || byte_at(text, at + i) < low || byte_at(text, at + i) > high) return -i;
    }
    return size;
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

std::size_t valid_prefix(std::string_view text) {
    std::size_t at = 0;
    while ((at = skip_ascii(text, at)) < text.size()) {
        const int length = sequence_length(text, at);
        if (length < 0) return at;
        at += length;
    }
    return at;
}

void append_lossy(std::string& out, std::string_view bytes, Alignment* alignment) {
    while (!bytes.empty()) {
        const std::size_t valid = valid_prefix(bytes);
        out += bytes.substr(0, valid);
        if (alignment) alignment->append_exact(valid);
        bytes.remove_prefix(valid);
        if (bytes.empty()) break;
        const std::size_t bad = static_cast<std::size_t>(-sequence_length(bytes, 0));
        append(out, replacement_character);
        if (alignment) alignment->append_block(3, bad);
        bytes.remove_prefix(bad);
    }
}

bool is_white_space(char32_t c) {
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_word(char32_t c) {
    static const CodePointSet words(word_ranges());
    return words.contains(c);
}

bool is_punctuation(char32_t c) {
    static const CodePointSet punctuation(punctuation_ranges());
    return punctuation.contains(c);
}

bool is_numeric(char32_t c) {
    static const CodePointSet numbers(numeric_ranges());
    return numbers.contains(c);
}

bool is_accent(char32_t c) {
    static const CodePointSet accents(accent_ranges());
    return accents.contains(c);
}

void append_lowercase(std::string& out, char32_t c) {
    if (c == 0x130) {  // the only character whose lower case is two: i and a dot above
        out += "i\u0307";
        return;
    }
    const CaseRun* run = find_range(lowercase_runs(), c);
    append(out, run && (c - run->first) % run->step == 0 ? c + run->distance : c);
}

std::string_view strip(std::string_view text) {
    const auto removed = [](char32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); };
    while (!text.empty()) {
        const Decoded d = decode(text, 0);
        if (!removed(d.code_point)) break;
        text.remove_prefix(d.size);
    }
    while (!text.empty()) {
        const std::size_t at = previous(text, text.size());
        if (!removed(decode(text, at).code_point)) break;
        text.remove_suffix(text.size() - at);
    }
    return text;
}

bool shadow_categories(std::string_view text, std::string& out) {
    static const CodePointSet drifting = [] {
        CodePointSet set;
        for (const Replacement& row : category_drift()) set.insert(row.first, row.last);
        set.seal();
        return set;
    }();
    bool found = false;
    for (std::size_t at = 0; (at = skip_ascii(text, at)) < text.size();) {
        const Decoded d = decode(text, at);
        if (drifting.contains(d.code_point)) {
            if (!found) out = text;
            found = true;
            std::string stand_in;
            append(stand_in, find_range(category_drift(), d.code_point)->replacement);
            out.replace(at, d.size, stand_in);
        }
        at += d.size;
    }
    return found;
}

}  // namespace unsloth::tokenizer::unicode
