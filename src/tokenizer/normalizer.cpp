#include "tokenizer/normalizer.h"

#include "tokenizer/byte_level.h"

namespace unsloth::tokenizer {
namespace {

void run(const PrependStep& step, std::string_view text, Rewriter& out) {
    if (!text.empty()) append_prefixed(step.text, text, out);
}

void run(const ReplaceStep& step, std::string_view text, Rewriter& out) {
    if (!text.empty()) append_replaced(step.pattern, step.content, text, out);
}

void run(const StripStep& step, std::string_view text, Rewriter& out) {
    const std::string_view kept = unicode::stripped(text, step.left, step.right, unicode::is_white_space);
    const auto begin = static_cast<std::size_t>(kept.data() - text.data());
    out.skip(begin);
    out.copy(kept);
    out.skip(text.size() - begin - kept.size());
}

/// Rewrites character by character: `map` appends what replaces one.
template <class Map>
void map_characters(std::string_view text, Rewriter& out, Map map) {
    std::string piece;
    for (std::size_t at = 0; at < text.size();) {
        const unicode::Decoded d = unicode::decode(text, at);
        piece.clear();
        map(piece, d.code_point);
        const std::string_view old = text.substr(at, d.size);
        piece == old ? out.copy(old) : out.replace(piece, d.size);
        at += d.size;
    }
}

void run(const LowercaseStep&, std::string_view text, Rewriter& out) {
    map_characters(text, out, unicode::append_lowercase);
}

void run(const StripAccentsStep&, std::string_view text, Rewriter& out) {
    map_characters(text, out, [](std::string& to, char32_t c) {
        if (!unicode::is_accent(c)) unicode::append(to, c);
    });
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
    out.replace(std::string(prefix).append(text.substr(0, first)), first);
    out.copy(text.substr(first));
}

void append_replaced(const Pattern& pattern, std::string_view content, std::string_view text, Rewriter& out) {
    std::size_t done = 0;
    for_each_match(pattern, text, [&](std::size_t begin, std::size_t end) {
        out.copy(text.substr(done, begin - done));
        // The content stands for the last character of the match, as in HF.
        const std::size_t last = begin < end ? unicode::previous(text, end) : end;
        out.skip(last - begin);
        out.replace(content, end - last);
        done = end;
    });
    out.copy(text.substr(done));
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
