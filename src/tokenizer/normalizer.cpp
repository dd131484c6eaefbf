#include "tokenizer/normalizer.h"

#include "tokenizer/byte_level.h"

namespace unsloth::tokenizer {

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

}  // namespace unsloth::tokenizer
