#include "tokenizer/pre_tokenizer.h"

#include "tokenizer/matches.h"
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
void find_pieces(const RegexSplit& step, std::string_view text, std::size_t base, std::vector<Piece>& pieces) {
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
    const auto push = [&](const Piece& piece) { words.push_back({piece.begin, piece.end}); };
    const auto started = [&] { return words.size() > first; };
    bool previous_match = false;
    switch (behavior) {
        case SplitBehavior::isolated:
            for (const Piece& piece : pieces) push(piece);
            break;
        case SplitBehavior::removed:
            for (const Piece& piece : pieces) {
                if (!piece.match) push(piece);
            }
            break;
        case SplitBehavior::contiguous:
            for (const Piece& piece : pieces) {
                if (piece.match == previous_match && started()) {
                    words.back().end = piece.end;
                } else {
                    push(piece);
                }
                previous_match = piece.match;
            }
            break;
        case SplitBehavior::merged_with_previous:
            for (const Piece& piece : pieces) {
                if (piece.match && !previous_match && started()) {
                    words.back().end = piece.end;
                } else {
                    push(piece);
                }
                previous_match = piece.match;
            }
            break;
        case SplitBehavior::merged_with_next:
            // The mirror image of merged_with_previous: of several matches in a row only the last joins the
            // gap.
            for (std::size_t i = 0; i < pieces.size(); ++i) {
                const bool joins = pieces[i].match && i + 1 < pieces.size() && !pieces[i + 1].match;
                push(pieces[i]);
                if (joins) words.back().end = pieces[++i].end;
            }
            break;
    }
    std::size_t kept = first;
    for (std::size_t i = first; i < words.size(); ++i) {
        if (words[i].begin < words[i].end) words[kept++] = words[i];
    }
    words.resize(kept);
}

enum class Run { white_space, word, other };

Run run_of(char32_t c) {
    if (unicode::is_white_space(c)) return Run::white_space;
    return unicode::is_word(c) ? Run::word : Run::other;
}

void split_word(const WordRunSplit&, const SplitText& text, const Word& word, std::vector<Word>& out) {
    Run previous = Run::white_space;
    for (std::size_t at = word.begin; at < word.end;) {
        const unicode::Decoded d = unicode::decode(text.text, at);
        const Run run = run_of(d.code_point);
        if (run != previous && run != Run::white_space) out.push_back({at, at});
        at += d.size;
        if (run != Run::white_space) out.back().end = at;
        previous = run;
    }
}

void split_word(const FixedLengthSplit& step, const SplitText& text, const Word& word, std::vector<Word>& out) {
    std::size_t characters = 0;
    for (std::size_t at = word.begin; at < word.end; ++characters) {
        if (characters % step.length == 0) out.push_back({at, at});
        at += unicode::decode(text.text, at).size;
        out.back().end = at;
    }
}

/// A step that only splits; the text stays.
template <class Step>
void apply_split(const Step& step, SplitText& text) {
    std::vector<Word> next;
    if constexpr (std::is_same_v<Step, RegexSplit> || std::is_same_v<Step, CharacterSplit>) {
        std::vector<Piece> pieces;
        std::string shadow;
        std::string_view subject = text.text;
        if (std::is_same_v<Step, RegexSplit> && unicode::shadow_categories(text.text, shadow)) subject = shadow;
        for (const Word& word : text.words) {
            pieces.clear();
            find_pieces(step, subject.substr(word.begin, word.end - word.begin), word.begin, pieces);
            join_pieces(step.behavior, pieces, next);
        }
    } else {
        for (const Word& word : text.words) split_word(step, text, word, next);
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

/// `text` with its spaces replaced.
void append_replaced(const SpaceReplacement& step, std::string_view text, Rewriter& out) {
    std::size_t done = 0;
    for_each_match(" ", text, [&](std::size_t begin, std::size_t end) {
        out.copy(text.substr(done, begin - done));
        out.replace(step.replacement, end - begin);
        done = end;
    });
    out.copy(text.substr(done));
}

void replace_spaces(const SpaceReplacement& step, SplitText& text, bool aligned, const PreTokenizer::Origin& origin) {
    rewrite_words(text, aligned, [&](std::string_view word, const Word& place, Rewriter& out) {
        using Prepend = SpaceReplacement::Prepend;
        const bool starts = word[0] == ' ' || word.substr(0, step.replacement.size()) == step.replacement;
        bool prepend = step.prepend != Prepend::never && !starts;
        if (prepend && step.prepend == Prepend::first) {
            prepend = origin(text.alignment.to_input({place.begin, place.end})) == 0;
        }
        if (!prepend) return append_replaced(step, word, out);
        const std::size_t first = unicode::decode(word, 0).size;
        append_prefixed(step.replacement, word.substr(0, first), out);
        append_replaced(step, word.substr(first), out);
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
    } else if (const auto* regex = std::get_if<RegexSplit>(&step)) {
        apply_split(*regex, text);
    } else if (const auto* characters = std::get_if<CharacterSplit>(&step)) {
        apply_split(*characters, text);
    } else if (const auto* runs = std::get_if<WordRunSplit>(&step)) {
        apply_split(*runs, text);
    } else {
        apply_split(std::get<FixedLengthSplit>(step), text);
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
