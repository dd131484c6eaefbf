#include "unsloth/tokenizer/chat.h"

#include <algorithm>
#include <iterator>

#include "tokenizer/builtin_templates.h"
#include "tokenizer/jinja/text.h"
#include "unsloth/core/error.h"

namespace unsloth::tokenizer {
namespace {

/// The text of a special token, so that encoding a rendered text finds it again.
std::string text_of(const Tokenizer& tokenizer, int32_t id, const char* role) {
    const std::string token = tokenizer.token(id);
    if (tokenizer.added_token_id(token) == id) return token;
    throw Error("tokenizer.bad-file",
                cat("the ", role, " token '", token, "' of the tokenizer in ", tokenizer.folder().string(),
                    " is not one of its added_tokens, so no text can contain it"));
}

constexpr std::string_view alpaca_response = "### Response:\n";

}  // namespace

std::string leading_bos(const Tokenizer& tokenizer) {
    return tokenizer.adds_bos() ? text_of(tokenizer, *tokenizer.bos_id(), "beginning-of-sequence") : std::string();
}

std::string end_of_sequence(const Tokenizer& tokenizer) {
    if (tokenizer.eos_id()) return text_of(tokenizer, *tokenizer.eos_id(), "end-of-sequence");
    throw Error("tokenizer.no-eos",
                cat("the tokenizer in ", tokenizer.folder().string(),
                    " names no end-of-sequence token, which must end every answer"),
                "set eos_token in its tokenizer_config.json");
}

std::string alpaca_preamble(std::string_view system, bool has_input) {
    if (!system.empty()) return std::string(system);
    return has_input ? "Below is an instruction that describes a task, paired with an input that provides further "
                       "context. Write a response that appropriately completes the request."
                     : "Below is an instruction that describes a task. Write a response that appropriately "
                       "completes "
                       "the request.";
}

EncodedTurns encode_rendered(const Tokenizer& tokenizer, const Rendered& rendered) {
    Encoding encoding = tokenizer.encode_with_offsets(rendered.text, false);
    EncodedTurns out;
    const auto& offsets = encoding.offsets;
    for (const auto& [begin_byte, end_byte] : rendered.trained_bytes) {
        const auto first = std::partition_point(offsets.begin(), offsets.end(),
                                                [&, b = begin_byte](const auto& span) { return span.first < b; });
        const auto last = std::partition_point(first, offsets.end(),
                                               [&, e = end_byte](const auto& span) { return span.second <= e; });
        out.merged_start |= first != offsets.begin() && std::prev(first)->second > begin_byte && begin_byte < end_byte;
        if (first < last) out.trained.emplace_back(first - offsets.begin(), last - offsets.begin());
    }
    out.ids = std::move(encoding.ids);
    return out;
}

std::string alpaca_prompt(std::string_view instruction, std::string_view input, std::string_view system) {
    std::string out = alpaca_preamble(system, !input.empty());
    out += cat("\n\n### Instruction:\n", instruction, "\n\n");
    if (!input.empty()) out += cat("### Input:\n", input, "\n\n");
    out += alpaca_response;
    return out;
}

std::optional<std::size_t> written_end(const Tokenizer& tokenizer, std::string_view text) {
    const std::string_view stripped = jinja::text::strip(text, jinja::text::Side::right);
    for (const int32_t id : tokenizer.stop_ids()) {
        const std::string token = id < tokenizer.vocab_size() ? tokenizer.token(id) : std::string();
        if (!token.empty() && tokenizer.added_token_id(token) == id && stripped.ends_with(token))
            return stripped.size();
    }
    return std::nullopt;
}

Rendered build_prompt_completion(const Tokenizer& tokenizer, std::string_view prompt, std::string_view completion) {
    Rendered out{cat(leading_bos(tokenizer), prompt)};
    const std::size_t begin = out.text.size();
    const std::optional<std::size_t> end = written_end(tokenizer, completion);
    out.text += cat(completion, end ? std::string() : end_of_sequence(tokenizer));
    out.trained_bytes.emplace_back(begin, end ? begin + *end : out.text.size());
    return out;
}

std::size_t common_prompt(const Tokenizer& tokenizer, std::string_view a, std::string_view b) {
    const std::string front = leading_bos(tokenizer);
    const Encoding one = tokenizer.encode_with_offsets(cat(front, a), false),
                   other = tokenizer.encode_with_offsets(cat(front, b), false);
    const auto equal =
        static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
    std::size_t common = 0;
    while (common < one.ids.size() && common < other.ids.size() && one.ids[common] == other.ids[common] &&
           one.offsets[common] == other.offsets[common] && one.offsets[common].second <= front.size() + equal)
        ++common;
    const auto end_of = [&](std::size_t tokens) {
        return tokens == 0 ? 0 : std::max(one.offsets[tokens - 1].second, front.size()) - front.size();
    };
    const auto& stops = tokenizer.stop_ids();
    for (const Encoding* side : {&one, &other}) {
        if (end_of(common) == 0 || common == side->ids.size()) continue;
        const int32_t next = side->ids[common];
        if (tokenizer.is_special(next) && std::find(stops.begin(), stops.end(), next) == stops.end())
            throw Error("data.no-prompt",
                        cat("the row has no prompt, and its texts part in front of the special token ",
                            tokenizer.token(next), ", with which no answer begins"),
                        "Add a column prompt, or write the prompt and the answers as messages.");
    }
    // Several tokens may be of one character.
    const auto cuts = [&](std::string_view text) {
        const std::size_t end = end_of(common);
        return end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80;
    };
    while (common > 0 && (cuts(a) || cuts(b))) --common;
    return end_of(common);
}

}  // namespace unsloth::tokenizer
