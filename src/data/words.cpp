#include "data/words.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "unsloth/core/philox.h"
#include "unsloth/tokenizer/characters.h"

namespace unsloth::data {
namespace {

using Range = std::pair<std::size_t, std::size_t>;

constexpr std::array<std::string_view, 10> opening = {"\"",     "'",      "(",      "\u201c", "\u2018",
                                                      "\u00ab", "\u201e", "\u201a", "\u00bf", "\u00a1"};
constexpr std::array<std::string_view, 14> closing = {"\"", "'", ")", "\u201d", "\u2019", "\u00bb", "\u201c",
                                                      ".",  ",", ";", ":",      "!",      "?",      "\u2026"};

template <std::size_t n>
bool is_one_of(const std::array<std::string_view, n>& set, std::string_view character) {
    return std::find(set.begin(), set.end(), character) != set.end();
}

std::size_t line_end(std::string_view text, std::size_t at) {
    const std::size_t end = text.find('\n', at);
    return end == std::string_view::npos ? text.size() : end;
}

/// Of a line that begins at `at` and is a fence, the characters that make it ("```"); else empty.
std::string_view fence_at(std::string_view text, std::size_t at) {
    std::size_t begin = at;
    while (begin < text.size() && begin < at + 3 && text[begin] == ' ') ++begin;
    for (const char mark : {'`', '~'}) {
        std::size_t end = begin;
        while (end < text.size() && text[end] == mark) ++end;
        if (end - begin >= 3) return text.substr(begin, end - begin);
    }
    return {};
}

/// The end of the fenced block whose first line begins at `at`: after its closing line, or the end of the text.
std::size_t fence_end(std::string_view text, std::size_t at, std::string_view fence) {
    for (std::size_t next = line_end(text, at); next < text.size(); next = line_end(text, next)) {
        ++next;
        const std::string_view closing_fence = fence_at(text, next);
        if (closing_fence.starts_with(fence)) return line_end(text, next);
    }
    return text.size();
}

/// The end of what a bracket or backquote at `at` opens, after its other end; nothing when that is missing.
std::optional<std::size_t> enclosed_end(std::string_view text, std::size_t at) {
    const char open = text[at];
    const char close = open == '{' ? '}' : open == '[' ? ']' : open == '<' ? '>' : '`';
    const std::size_t limit = open == '{' ? text.size() : line_end(text, at);
    int64_t depth = 0;
    for (std::size_t i = at; i < limit; ++i) {
        if (text[i] == close && i > at && --depth == 0) return i + 1;
        if (text[i] == open && (open != '`' || i == at)) ++depth;
    }
    return std::nullopt;
}

/// What is left alone as a whole: code and placeholders. Ascending.
std::vector<Range> protected_ranges(std::string_view text) {
    std::vector<Range> ranges;
    bool line_begins = true;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t begin = at;
        if (const std::string_view fence = line_begins ? fence_at(text, at) : std::string_view(); !fence.empty()) {
            at = fence_end(text, at, fence);
            ranges.emplace_back(begin, at);
        } else if (std::string_view("`{[<").find(text[at]) != std::string_view::npos) {
            at = enclosed_end(text, at).value_or(at + 1);
            ranges.emplace_back(begin, at);
        } else {
            ++at;
        }
        line_begins = text[at - 1] == '\n';
    }
    return ranges;
}

/// Text with some ranges replaced; the ranges ascend and do not overlap.
std::string replaced(std::string_view text, const std::vector<std::pair<Range, std::string>>& changes) {
    std::string out;
    std::size_t at = 0;
    for (const auto& [range, with] : changes) {
        out += text.substr(at, range.first - at);
        out += with;
        at = range.second;
    }
    return out += text.substr(at);
}

std::string_view text_of(std::string_view text, const Word& word) {
    return text.substr(word.begin, word.end - word.begin);
}

bool is_blank_byte(char c) {
    return c == ' ' || c == '\t';
}

}  // namespace

AugmentRng::AugmentRng(uint64_t seed, uint64_t row, uint32_t copy, uint32_t use) {
    const auto low = [](uint64_t value) { return static_cast<uint32_t>(value); };
    const auto high = [](uint64_t value) { return static_cast<uint32_t>(value >> 32); };
    const PhiloxWords words = philox4x32(low(seed), high(seed), low(row), high(row), copy, use);
    key_[0] = words.w[0];
    key_[1] = words.w[1];
}

uint32_t AugmentRng::word() {
    return philox4x32(key_[0], key_[1], next_++, 0, 0, 0).w[0];
}

double AugmentRng::unit() {
    return static_cast<double>(unit_float(word()));
}

std::size_t AugmentRng::below(std::size_t n) {
    return static_cast<std::size_t>(static_cast<uint64_t>(word()) * n >> 32);
}

std::vector<Word> free_words(std::string_view text) {
    const std::vector<Range> kept = protected_ranges(text);
    std::vector<Word> words;
    std::size_t range = 0, line = 0, seen = 0;
    for (const std::string_view chunk : tokenizer::split_white_space(text)) {
        auto begin = static_cast<std::size_t>(chunk.data() - text.data());
        std::size_t end = begin + chunk.size();
        line += static_cast<std::size_t>(std::count(text.begin() + static_cast<std::ptrdiff_t>(seen),
                                                    text.begin() + static_cast<std::ptrdiff_t>(begin), '\n'));
        seen = begin;
        while (range < kept.size() && kept[range].second <= begin) ++range;
        if (range < kept.size() && kept[range].first < end) continue;
        Word word{begin, end, line, false};
        const auto core = [&] { return text_of(text, word); };
        while (is_one_of(opening, tokenizer::first_character(core())))
            word.begin += tokenizer::first_character(core()).size();
        while (is_one_of(closing, tokenizer::last_character(core())))
            word.end -= tokenizer::last_character(core()).size();
        word.follows_punctuation = word.begin > begin;
        if (!tokenizer::is_letters(core())) continue;
        const std::string_view rest = core().substr(tokenizer::first_character(core()).size());
        if (tokenizer::lowercase(rest) != rest) continue;  // an abbreviation, or a name in a program
        words.push_back(word);
    }
    return words;
}

std::string with_synonyms(std::string_view text, const Thesaurus& thesaurus, double rate, AugmentRng& draws) {
    std::vector<std::pair<Range, std::string>> changes;
    for (const Word& word : free_words(text)) {
        const std::string_view old = text_of(text, word);
        const std::vector<std::string>* const synonyms = thesaurus.find(tokenizer::lowercase(old));
        if (synonyms == nullptr || draws.unit() >= rate) continue;
        const std::string& synonym = (*synonyms)[draws.below(synonyms->size())];
        const std::string_view first = tokenizer::first_character(old);
        changes.push_back({{word.begin, word.end},
                           tokenizer::lowercase(first) == first ? synonym : tokenizer::with_capital(synonym)});
    }
    return replaced(text, changes);
}

std::string with_swaps(std::string_view text, double rate, AugmentRng& draws) {
    const std::vector<Word> words = free_words(text);
    std::vector<std::string> now;
    for (const Word& word : words) now.emplace_back(text_of(text, word));
    for (std::size_t begin = 0, end = 0; begin < words.size(); begin = end) {
        while (end < words.size() && words[end].line == words[begin].line) ++end;
        for (std::size_t i = begin; i < end; ++i) {
            if (end - begin < 2 || draws.unit() >= rate) continue;
            const std::size_t other = begin + draws.below(end - begin - 1);
            std::swap(now[i], now[other < i ? other : other + 1]);
        }
    }
    std::vector<std::pair<Range, std::string>> changes;
    for (std::size_t i = 0; i < words.size(); ++i) changes.push_back({{words[i].begin, words[i].end}, now[i]});
    return replaced(text, changes);
}

std::string with_deletions(std::string_view text, double rate, AugmentRng& draws) {
    const std::vector<Word> words = free_words(text);
    std::vector<std::pair<Range, std::string>> changes;
    std::size_t gone = 0;  // bytes before this are taken by the deletion before
    for (const Word& word : words) {
        if (word.follows_punctuation || draws.unit() >= rate || changes.size() + 1 == words.size()) continue;
        Range range{word.begin, word.end};
        while (range.first > gone && is_blank_byte(text[range.first - 1])) --range.first;
        if (range.first == word.begin || range.first == 0 ||
            text[range.first - 1] == '\n') {  // at the beginning of a line, or of what is left of it
            range.first = word.begin;         // the line stays as far in
            while (range.second < text.size() && is_blank_byte(text[range.second])) ++range.second;
            if (range.second == word.end) continue;  // punctuation would begin the line, or nothing be left
        }
        changes.push_back({range, ""});
        gone = range.second;
    }
    return replaced(text, changes);
}

const std::vector<std::string>* Thesaurus::find(std::string_view word) const {
    const auto found = synonyms_.find(std::string(word));
    return found == synonyms_.end() ? nullptr : &found->second;
}

}  // namespace unsloth::data
