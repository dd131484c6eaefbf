#include "tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <limits>

#include "tokenizer/normalizer.h"
#include "tokenizer/unicode.h"

namespace unsloth::tokenizer {
namespace {

/// Makes words of the gaps and matches of one word, which come in order and without gaps between them: joined as the
/// behaviour says, empty ones left out.
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

void find_pieces(const CharacterSplit& step, std::string_view text, std::size_t base, Joiner& words) {
    std::size_t done = 0;
    for (std::size_t at = 0; at < text.size();) {
        const unicode::Decoded d = unicode::decode(text, at);
        if (step.matches(d.code_point)) {
            if (done < at) words.add(base + done, base + at, false);
            words.add(base + at, base + at + d.size, true);
            done = at + d.size;
        }
        at += d.size;
    }
    if (done < text.size()) words.add(base + done, base + text.size(), false);
}

/// A step that only splits; the text stays.
template <class Step>
void apply_split(const Step& step, SplitText& text) {
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
    if (std::holds_alternative<PrefixSpace>(step)) {
        rewrite_words(text, aligned, [](std::string_view word, Rewriter& out) {
            if (word[0] == ' ') {
                out.copy(word);
            } else {
                append_prefixed(" ", word, out);
            }
        });
    } else if (const auto* spaces = std::get_if<SpaceReplacement>(&step)) {
        replace_spaces(*spaces, text, first, aligned);
    } else if (std::holds_alternative<ByteAlphabet>(step)) {
        rewrite_words(text, aligned, append_byte_alphabet);
    } else if (const auto* pattern = std::get_if<PatternSplit>(&step)) {
        apply_split(*pattern, text);
    } else {
        apply_split(std::get<CharacterSplit>(step), text);
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

}  // namespace unsloth::tokenizer
