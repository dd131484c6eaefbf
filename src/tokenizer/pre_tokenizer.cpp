#include "tokenizer/pre_tokenizer.h"

#include "tokenizer/unicode.h"

namespace unsloth {
namespace {

/// Gaps and matches of one word, in order and without gaps between them.
struct Piece {
    std::size_t begin, end;
    bool match;
};

void find_pieces(const SplitStep& step, std::string_view text, std::size_t base, std::vector<Piece>& pieces) {
    pieces.clear();
    const auto add = [&](std::size_t begin, std::size_t end, bool match) {
        pieces.push_back({base + begin, base + end, match != step.invert});
    };
    std::size_t done = 0, from = 0, begin = 0, end = 0;
    std::size_t last_end = std::string_view::npos;
    while (from <= text.size() && step.pattern->search(text, from, begin, end)) {
        from = end;
        if (begin == end) {
            // An empty match counts, but not right behind another match; then the search moves on by a
            // character.
            from = end < text.size() ? end + unicode::decode(text, end).size : end + 1;
            if (end == last_end) continue;
        }
        if (done < begin) add(done, begin, false);
        add(begin, end, true);
        done = last_end = end;
    }
    if (done < text.size()) add(done, text.size(), false);
}

/// Joins pieces as the behaviour says. Empty words are left out.
void join_pieces(const SplitStep& step, const std::vector<Piece>& pieces, std::vector<Word>& words) {
    const std::size_t first = words.size();
    const auto push = [&](const Piece& piece) { words.push_back({piece.begin, piece.end}); };
    const auto started = [&] { return words.size() > first; };
    bool previous_match = false;
    switch (step.behavior) {
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

void insert_prefix_spaces(SplitText& out) {
    std::string text;
    Alignment map;
    std::size_t copied = 0;
    for (Word& word : out.words) {
        const bool has_space = out.text[word.begin] == ' ';
        text += out.text.substr(copied, word.begin - copied);
        map.append_exact(word.begin - copied);
        copied = word.begin;
        if (!has_space) {
            text += ' ';
            map.append_block(1, 0);
        }
        const std::size_t length = word.end - word.begin;
        text += out.text.substr(word.begin, length);
        map.append_exact(length);
        copied = word.end;
        word = {text.size() - length - (has_space ? 0 : 1), text.size()};
    }
    out.rewritten = std::move(text);
    out.text = out.rewritten;
    out.alignment = std::move(map);
}

}  // namespace

void PreTokenizer::split(std::string_view text, SplitText& out) const {
    out.text = text;
    out.alignment = {};
    out.words.clear();
    if (!text.empty()) out.words.push_back({0, text.size()});
    std::vector<Word> next;
    std::vector<Piece> pieces;
    std::string shadow;
    for (const SplitStep& step : steps_) {
        if (step.add_prefix_space) insert_prefix_spaces(out);
        if (!step.pattern) continue;
        const std::string_view subject = unicode::shadow_categories(out.text, shadow) ? shadow : out.text;
        next.clear();
        for (const Word& word : out.words) {
            find_pieces(step, subject.substr(word.begin, word.end - word.begin), word.begin, pieces);
            join_pieces(step, pieces, next);
        }
        out.words.swap(next);
    }
}

}  // namespace unsloth
