#include "tokenizer/pipeline.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include "tokenizer/unicode.h"
#include "unsloth/core/utf8.h"

namespace unsloth::tokenizer {
namespace {

constexpr char32_t first_stand_in = 0x100;

struct Alphabet {
    std::array<int16_t, 0x144> byte{};  ///< of a character, or -1

    constexpr Alphabet() {
        for (int16_t& b : byte) b = -1;
        char32_t next = first_stand_in;
        for (int b = 0; b < 256; ++b) {
            const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
            byte[printable ? static_cast<char32_t>(b) : next++] = static_cast<int16_t>(b);
        }
    }
};
constexpr Alphabet alphabet;

}  // namespace

std::string_view character_of_byte(uint8_t byte) {
    static const std::array<std::string, 256> characters = [] {
        std::array<std::string, 256> out;
        for (std::size_t c = 0; c < alphabet.byte.size(); ++c) {
            if (alphabet.byte[c] >= 0)
                unicode::append(out[static_cast<std::size_t>(alphabet.byte[c])], static_cast<char32_t>(c));
        }
        return out;
    }();
    return characters[byte];
}

std::optional<std::string> bytes_of_token(std::string_view token) {
    std::string bytes;
    for (std::size_t at = 0; at < token.size();) {
        const unicode::Decoded d = unicode::decode(token, at);
        if (d.code_point >= alphabet.byte.size() || alphabet.byte[d.code_point] < 0) return std::nullopt;
        bytes += static_cast<char>(alphabet.byte[d.code_point]);
        at += d.size;
    }
    return bytes;
}

std::optional<char> fallback_byte(std::string_view token) {
    if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return std::nullopt;
    const char* const last = token.data() + 5;
    uint8_t byte = 0;
    const auto [end, error] = std::from_chars(token.data() + (token[3] == '+' ? 4 : 3), last, byte, 16);
    return error == std::errc() && end == last ? std::optional(static_cast<char>(byte)) : std::nullopt;
}

// --- normalizer

namespace {

/// Writes the bytes of `text` as characters of GPT-2's alphabet.
void append_byte_alphabet(std::string_view text, Rewriter& out) {
    for (const char c : text) {
        const std::string_view character = character_of_byte(static_cast<uint8_t>(c));
        if (character.size() == 1) {
            out.copy(character);
        } else {
            out.replace(character, 1);
        }
    }
}

/// Puts `prefix` in front of `text` (not empty); it shares the place of the first character, as in HF.
void append_prefixed(std::string_view prefix, std::string_view text, Rewriter& out) {
    const std::size_t first = unicode::decode(text, 0).size;
    out.replace(std::string(prefix).append(text.substr(0, first)), first);
    out.copy(text.substr(first));
}

/// `text` with `content` in place of all matches.
void append_replaced(const Pattern& pattern, std::string_view content, std::string_view text, Rewriter& out) {
    std::size_t done = 0;
    for_each_match(pattern, text, [&](std::size_t begin, std::size_t end) {
        out.copy(text.substr(done, begin - done));
        // The content replaces the last character of the match, as in HF.
        const std::size_t last = begin < end ? unicode::previous(text, end) : end;
        out.skip(last - begin);
        out.replace(content, end - last);
        done = end;
    });
    out.copy(text.substr(done));
}

}  // namespace

std::string_view normalize(const std::vector<NormalizerStep>& steps, std::string_view text, std::string& storage,
                           bool aligned, AlignmentChain& chain) {
    const std::size_t limit = growth_limit(text.size());
    for (const NormalizerStep& step : steps) {
        if (text.empty()) break;
        std::string out;
        Alignment alignment;
        if (std::holds_alternative<NfcStep>(step)) {
            if (!unicode::compose(text, out, alignment)) continue;
        } else {
            Rewriter rewriter(aligned, limit);
            if (const auto* replace = std::get_if<ReplaceStep>(&step)) {
                append_replaced(replace->pattern, replace->content, text, rewriter);
            } else {
                append_prefixed(std::get<PrependStep>(step).text, text, rewriter);
            }
            out = rewriter.take_text();
            alignment = rewriter.take_alignment();
        }
        storage = std::move(out);
        text = storage;
        if (aligned) chain.push(std::move(alignment));
    }
    return text;
}

// --- pre_tokenizer

namespace {

/// Makes words of the gaps and matches of one word, which come in order and without gaps between them: joined as the
/// behavior says, empty ones omitted.
class Joiner {
  public:
    Joiner(SplitBehavior behavior, Words& words) : behavior_(behavior), words_(words), first_(words.size()) {}
    ~Joiner() { drop_empty(); }
    Joiner(const Joiner&) = delete;
    Joiner& operator=(const Joiner&) = delete;

    void add(std::size_t begin, std::size_t end, bool match) {
        const bool follows = words_.size() > first_, after_match = follows && last_matched_;
        // The mirror image of merged_with_previous: of several matches in a row only the last joins the gap.
        const bool joins = behavior_ == SplitBehavior::contiguous             ? follows && match == after_match
                           : behavior_ == SplitBehavior::merged_with_previous ? follows && match && !after_match
                           : behavior_ == SplitBehavior::merged_with_next     ? follows && !match && after_match
                                                                              : false;
        if (joins) {
            words_.back().end = static_cast<uint32_t>(end);
        } else if (!match || behavior_ != SplitBehavior::removed) {
            drop_empty();
            words_.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(end)});
        }
        last_matched_ = match;
    }

  private:
    void drop_empty() {
        if (words_.size() > first_ && words_.back().begin == words_.back().end) words_.pop_back();
    }

    SplitBehavior behavior_;
    Words& words_;
    std::size_t first_;
    bool last_matched_ = false;
};

/// `base` is the place of `text`, which a step looks at, within the whole.
void find_pieces(const PatternSplit& step, std::string_view text, std::size_t base, Joiner& words) {
    std::size_t done = 0;
    const auto add = [&](std::size_t begin, std::size_t end, bool match) {
        words.add(base + begin, base + end, match != step.invert);
    };
    for_each_match(step.pattern, text, [&](std::size_t begin, std::size_t end) {
        if (done < begin) add(done, begin, false);
        add(begin, end, true);
        done = end;
    });
    if (done < text.size()) add(done, text.size(), false);
}

/// A step that only splits; the text stays.
void apply_split(const PatternSplit& step, SplitText& text) {
    Words next;
    for (const Word& word : text.words) {
        Joiner joined(step.behavior, next);
        find_pieces(step, text.text.substr(word.begin, word.end - word.begin), word.begin, joined);
    }
    text.words.swap(next);
}

/// A step that rewrites every word by `rewrite(word, out)`.
template <class Rewrite>
void rewrite_words(SplitText& text, bool aligned, Rewrite rewrite) {
    Rewriter out(aligned, text.limit);
    std::size_t done = 0;
    for (Word& word : text.words) {
        out.skip(word.begin - done);
        done = word.end;
        const std::size_t begin = out.text().size();
        rewrite(text.text.substr(word.begin, word.end - word.begin), out);
        word = {static_cast<uint32_t>(begin), static_cast<uint32_t>(out.text().size())};
    }
    out.skip(text.text.size() - done);
    text.rewritten = out.take_text();
    text.text = text.rewritten;
    if (aligned) text.alignment.push(out.take_alignment());
}

void replace_spaces(const SpaceReplacement& step, SplitText& text, bool first, bool aligned) {
    static const Pattern space{std::nullopt, " "};
    rewrite_words(text, aligned, [&](std::string_view word, Rewriter& out) {
        using Prepend = SpaceReplacement::Prepend;
        const bool starts = word[0] == ' ' || word.substr(0, step.replacement.size()) == step.replacement;
        const bool prepend = step.prepend == Prepend::always || (step.prepend == Prepend::first && first);
        if (!prepend || starts) return append_replaced(space, step.replacement, word, out);
        const std::size_t size = unicode::decode(word, 0).size;
        append_prefixed(step.replacement, word.substr(0, size), out);
        append_replaced(space, step.replacement, word.substr(size), out);
    });
}

void apply(const PreTokenizerStep& step, SplitText& text, bool first, bool aligned) {
    if (const auto* spaces = std::get_if<SpaceReplacement>(&step)) {
        replace_spaces(*spaces, text, first, aligned);
    } else if (std::holds_alternative<ByteAlphabet>(step)) {
        rewrite_words(text, aligned, append_byte_alphabet);
    } else {
        apply_split(std::get<PatternSplit>(step), text);
    }
}

}  // namespace

void split_words(const std::vector<PreTokenizerStep>& steps, std::string_view text, bool first, bool aligned,
                 SplitText& out) {
    out.text = text;
    out.limit = std::min<std::size_t>(growth_limit(text.size()), std::numeric_limits<uint32_t>::max());
    check_growth(text.size(), out.limit);
    out.alignment = {};
    out.words.clear();
    if (!text.empty()) out.words.push_back({0, static_cast<uint32_t>(text.size())});
    for (const PreTokenizerStep& step : steps) apply(step, out, first, aligned);
}

// --- decoder

namespace {

using Tokens = std::vector<std::string>;

std::string join(const Tokens& tokens, std::string_view between) {
    std::string out;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (i > 0) out += between;
        out += tokens[i];
    }
    return out;
}

void run(const ByteLevelDecoder&, Tokens& tokens, std::size_t) {
    std::string bytes;
    for (const std::string& token : tokens) bytes += bytes_of_token(token).value_or(token);
    tokens.assign(1, repair_utf8(bytes));
}

/// A run of bytes that is no UTF-8 becomes one U+FFFD a byte.
void run(const ByteFallbackDecoder&, Tokens& tokens, std::size_t) {
    Tokens out;
    std::string bytes;
    const auto flush = [&] {
        if (first_invalid_utf8(bytes) == bytes.size()) {
            if (!bytes.empty()) out.push_back(bytes);
        } else {
            out.insert(out.end(), bytes.size(), "\uFFFD");
        }
        bytes.clear();
    };
    for (std::string& token : tokens) {
        if (const std::optional<char> byte = fallback_byte(token)) {
            bytes += *byte;
        } else {
            flush();
            out.push_back(std::move(token));
        }
    }
    flush();
    tokens = std::move(out);
}

void run(const FuseDecoder&, Tokens& tokens, std::size_t) {
    tokens.assign(1, join(tokens, ""));
}

void run(const ReplaceDecoder& step, Tokens& tokens, std::size_t limit) {
    std::size_t size = 0;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[i].empty()) continue;
        Rewriter out(false, limit);
        append_replaced(step.pattern, step.not_in_first && i == 0 ? "" : step.content, tokens[i], out);
        tokens[i] = out.take_text();
        size += tokens[i].size();
        check_growth(size, limit);
    }
}

void run(const StripDecoder& step, Tokens& tokens, std::size_t) {
    for (std::string& token : tokens) {
        std::string_view rest = token;
        for (int32_t i = 0; i < step.start && rest.starts_with(step.content); ++i)
            rest.remove_prefix(step.content.size());
        for (int32_t i = 0; i < step.stop && rest.ends_with(step.content); ++i) rest.remove_suffix(step.content.size());
        token = std::string(rest);
    }
}

}  // namespace

std::string Decoder::decode(std::vector<std::string> tokens) const {
    std::size_t size = 0;
    for (const std::string& token : tokens) size += token.size();
    const std::size_t limit = growth_limit(size);
    for (const DecoderStep& step : steps) {
        std::visit([&](const auto& one) { run(one, tokens, limit); }, step);
    }
    return join(tokens, steps.empty() && !sequence ? " " : "");
}

}  // namespace unsloth::tokenizer
