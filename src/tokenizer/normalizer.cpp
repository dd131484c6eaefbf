#include "tokenizer/normalizer.h"

#include "tokenizer/byte_level.h"
#include "tokenizer/matches.h"

namespace unsloth::tokenizer {
namespace {

/// What `Nmt` (the rules of Google's neural translation, as in SentencePiece) makes of a character: 0 removes
/// it.
char32_t nmt(char32_t c) {
    const bool removed =
        (c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
    if (removed) return 0;
    const bool space = c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
                       (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF ||
                       c == 0xFFFD;
    return space ? U' ' : c;
}

/// Rewrites character by character; `map(code point, out)` appends what replaces it.
template <class Map>
void map_characters(std::string_view text, Rewriter& out, Map map) {
    std::string piece;
    for (std::size_t at = 0; at < text.size();) {
        const unicode::Decoded d = unicode::decode(text, at);
        piece.clear();
        map(d.code_point, piece);
        const std::string_view old = text.substr(at, d.size);
        if (piece == old) {
            out.copy(old);
        } else {
            out.replace(piece, d.size);
        }
        at += d.size;
    }
}

void run(const PrependStep& step, std::string_view text, Rewriter& out) {
    if (!text.empty()) append_prefixed(step.text, text, out);
}

void run(const ReplaceStep& step, std::string_view text, Rewriter& out) {
    std::size_t done = 0;
    const auto found = [&](std::size_t begin, std::size_t end) {
        out.copy(text.substr(done, begin - done));
        // The content stands for the last character of the match, as in HF.
        const std::size_t last = begin < end ? unicode::previous(text, end) : end;
        out.skip(last - begin);
        out.replace(step.content, end - last);
        done = end;
    };
    if (step.pattern.regex) {
        std::string shadow;
        const std::string_view subject = unicode::shadow_categories(text, shadow) ? shadow : text;
        if (!text.empty()) for_each_match(*step.pattern.regex, subject, found);
    } else {
        for_each_match(std::string_view(step.pattern.literal), text, found);
    }
    out.copy(text.substr(done));
}

void run(const StripStep& step, std::string_view text, Rewriter& out) {
    std::size_t begin = 0, end = text.size();
    while (step.left && begin < end) {
        const unicode::Decoded d = unicode::decode(text, begin);
        if (!unicode::is_white_space(d.code_point)) break;
        begin += d.size;
    }
    while (step.right && end > begin) {
        const std::size_t at = unicode::previous(text, end);
        if (!unicode::is_white_space(unicode::decode(text, at).code_point)) break;
        end = at;
    }
    out.skip(begin);
    out.copy(text.substr(begin, end - begin));
    out.skip(text.size() - end);
}

void run(const LowercaseStep&, std::string_view text, Rewriter& out) {
    map_characters(text, out, [](char32_t c, std::string& to) { unicode::append_lowercase(to, c); });
}

void run(const StripAccentsStep&, std::string_view text, Rewriter& out) {
    map_characters(text, out, [](char32_t c, std::string& to) {
        if (!unicode::is_accent(c)) unicode::append(to, c);
    });
}

void run(const NmtStep&, std::string_view text, Rewriter& out) {
    map_characters(text, out, [](char32_t c, std::string& to) {
        if (c == 0) {
            to += '\0';
        } else if (const char32_t mapped = nmt(c)) {
            unicode::append(to, mapped);
        }
    });
}

void run(const ByteLevelStep&, std::string_view text, Rewriter& out) {
    append_byte_alphabet(text, out);
}

}  // namespace

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

void append_prefixed(std::string_view prefix, std::string_view text, Rewriter& out) {
    const std::size_t first = unicode::decode(text, 0).size;
    std::string head(prefix);
    head += text.substr(0, first);
    out.replace(head, first);
    out.copy(text.substr(first));
}

std::string_view Normalizer::apply(std::string_view text, std::string& storage, bool aligned,
                                   AlignmentChain& chain) const {
    const std::size_t limit = growth_limit(text.size());
    for (const NormalizerStep& step : steps_) {
        if (const auto* form = std::get_if<NormalFormStep>(&step)) {
            std::string out;
            Alignment alignment;
            if (!unicode::normalize(form->form, text, out, alignment)) continue;
            storage = std::move(out);
            if (aligned) chain.push(std::move(alignment));
        } else {
            Rewriter out(aligned, limit);
            std::visit(
                [&](const auto& one) {
                    if constexpr (!std::is_same_v<std::decay_t<decltype(one)>, NormalFormStep>) run(one, text, out);
                },
                step);
            storage = out.take_text();
            if (aligned) chain.push(out.take_alignment());
        }
        text = storage;
    }
    return text;
}

}  // namespace unsloth::tokenizer
