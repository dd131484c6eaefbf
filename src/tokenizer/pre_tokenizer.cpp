#include "tokenizer/pre_tokenizer.h"

#include "tokenizer/normalizer.h"
#include "tokenizer/unicode.h"

namespace unsloth::tokenizer {
namespace {

/// Gaps and matches of one word, in order and without gaps between them.
struct Piece {
    std::size_t begin, end;
    bool match;
};

/// `base` is the place of `text`, which a step looks at, within the whole.
void find_pieces(const PatternSplit& step, std::string_view text, std::size_t base, std::vector<Piece>& pieces) {
    std::size_t done = 0;
    const auto add = [&](std::size_t begin, std::size_t end, bool match) {
        pieces.push_back({base + begin, base + end, match != step.invert});
    };
    for_each_match(step.pattern, text, [&](std::size_t begin, std::size_t end) {
        if (done < begin) add(done, begin, false);
        add(begin, end, true);
        done = end;
    });
    if (done < text.size()) add(done, text.size(), false);
}

bool matches(const CharacterSplit& step, char32_t c) {
    switch (step.matched) {
        case CharacterSplit::Class::white_space:
            return unicode::is_white_space(c);
        case CharacterSplit::Class::word:
            return unicode::is_word(c);
        case CharacterSplit::Class::numeric:
            return unicode::is_numeric(c);
        case CharacterSplit::Class::punctuation:
            return unicode::is_punctuation(c);
        case CharacterSplit::Class::delimiter:
            return c == step.delimiter;
    }
    return false;
}

void find_pieces(const CharacterSplit& step, std::string_view text, std::size_t base, std::vector<Piece>& pieces) {
    std::size_t done = 0;
    for (std::size_t at = 0; at < text.size();) {
        const unicode::Decoded d = unicode::decode(text, at);
        if (matches(step, d.code_point)) {
            if (done < at) pieces.push_back({base + done, base + at, false});
            pieces.push_back({base + at, base + at + d.size, true});
            done = at + d.size;
        }
        at += d.size;
    }
    if (done < text.size()) pieces.push_back({base + done, base + text.size(), false});
}

/// Joins pieces as the behaviour says. Empty words are left out.
void join_pieces(SplitBehavior behavior, const std::vector<Piece>& pieces, std::vector<Word>& words) {
    const std::size_t first = words.size();
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        const Piece& piece = pieces[i];
        const bool follows = words.size() > first && i > 0, after_match = follows && pieces[i - 1].match;
        // The mirror image of merged_with_previous: of several matches in a row only the last joins the gap.
        const bool joins = behavior == SplitBehavior::contiguous             ? follows && piece.match == after_match
                           : behavior == SplitBehavior::merged_with_previous ? follows && piece.match && !after_match
                           : behavior == SplitBehavior::merged_with_next     ? follows && !piece.match && after_match
                                                                             : false;
        if (joins) {
            words.back().end = piece.end;
        } else if (!piece.match || behavior != SplitBehavior::removed) {
            words.push_back({piece.begin, piece.end});
        }
    }
    std::size_t kept = first;
    for (std::size_t i = first; i < words.size(); ++i) {
        if (words[i].begin < words[i].end) words[kept++] = words[i];
    }
    words.resize(kept);
}

/// A step that only splits; the text stays.
template <class Step>
void apply_split(const Step& step, SplitText& text) {
    std::vector<Word> next;
    std::vector<Piece> pieces;
    for (const Word& word : text.words) {
        pieces.clear();
        find_pieces(step, text.text.substr(word.begin, word.end - word.begin), word.begin, pieces);
        join_pieces(step.behavior, pieces, next);
    }
    text.words.swap(next);
}

/// A step that rewrites every word by `rewrite(word's text, its place, out)`.
template <class Rewrite>
void rewrite_words(SplitText& text, bool aligned, Rewrite rewrite) {
    Rewriter out(aligned, text.limit);
    std::size_t done = 0;
    for (Word& word : text.words) {
        out.skip(word.begin - done);
        done = word.end;
        const std::size_t begin = out.text().size();
        rewrite(text.text.substr(word.begin, word.end - word.begin), word, out);
        word = {begin, out.text().size()};
    }
    out.skip(text.text.size() - done);
    text.rewritten = out.take_text();
    text.text = text.rewritten;
    if (aligned) text.alignment.push(out.take_alignment());
}

void replace_spaces(const SpaceReplacement& step, SplitText& text, bool aligned, const PreTokenizer::Origin& origin) {
    static const Pattern space{std::nullopt, " "};
    rewrite_words(text, aligned, [&](std::string_view word, const Word& place, Rewriter& out) {
        using Prepend = SpaceReplacement::Prepend;
        const bool starts = word[0] == ' ' || word.substr(0, step.replacement.size()) == step.replacement;
        bool prepend = step.prepend != Prepend::never && !starts;
        if (prepend && step.prepend == Prepend::first) {
            prepend = origin(text.alignment.to_input({place.begin, place.end})) == 0;
        }
        if (!prepend) return append_replaced(space, step.replacement, word, out);
        const std::size_t first = unicode::decode(word, 0).size;
        append_prefixed(step.replacement, word.substr(0, first), out);
        append_replaced(space, step.replacement, word.substr(first), out);
    });
}

void apply(const PreTokenizerStep& step, SplitText& text, bool aligned, const PreTokenizer::Origin& origin) {
    if (std::holds_alternative<PrefixSpace>(step)) {
        rewrite_words(text, aligned, [](std::string_view word, const Word&, Rewriter& out) {
            if (word[0] == ' ') {
                out.copy(word);
            } else {
                append_prefixed(" ", word, out);
            }
        });
    } else if (const auto* spaces = std::get_if<SpaceReplacement>(&step)) {
        replace_spaces(*spaces, text, aligned, origin);
    } else if (std::holds_alternative<ByteAlphabet>(step)) {
        rewrite_words(text, aligned,
                      [](std::string_view word, const Word&, Rewriter& out) { append_byte_alphabet(word, out); });
    } else if (const auto* pattern = std::get_if<PatternSplit>(&step)) {
        apply_split(*pattern, text);
    } else {
        apply_split(std::get<CharacterSplit>(step), text);
    }
}

}  // namespace

PreTokenizer::PreTokenizer(std::vector<PreTokenizerStep> steps) : steps_(std::move(steps)) {
    for (std::size_t i = 0; i < steps_.size(); ++i) {
        const auto* spaces = std::get_if<SpaceReplacement>(&steps_[i]);
        if (spaces && spaces->prepend == SpaceReplacement::Prepend::first) origin_steps_ = i + 1;
    }
}

void PreTokenizer::split(std::string_view text, bool aligned, const Origin& origin, SplitText& out) const {
    out.text = text;
    out.limit = growth_limit(text.size());
    out.alignment = {};
    out.words.clear();
    if (!text.empty()) out.words.push_back({0, text.size()});
    // What is rewritten before a step that asks for the origin must be aligned for that step.
    for (std::size_t i = 0; i < steps_.size(); ++i) apply(steps_[i], out, aligned || i + 1 < origin_steps_, origin);
}

}  // namespace unsloth::tokenizer
