// Conversations as text, by built-in templates, and which part of that text is learned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth {

struct Message {
    std::string role;
    std::string content;
};

/// A text that contains all its special tokens (encode it without adding any) and the byte ranges to train
/// on: one for each assistant turn, from just behind its header up to and with the end-of-turn token.
struct Rendered {
    std::string text;
    std::vector<std::pair<std::size_t, std::size_t>> trained_bytes;
};

/// Token ids and the half-open ranges of token positions to train on.
struct EncodedTurns {
    std::vector<int32_t> ids;
    std::vector<std::pair<std::size_t, std::size_t>> trained;
};

/// The names `render` knows: llama-3, chatml, alpaca.
std::span<const std::string_view> builtin_templates();

/// `auto` becomes llama-3 where the tokenizer has <|start_header_id|>, chatml where it has <|im_start|>, else
/// alpaca; other names must be built-in ones: usage Error that lists them. Whoever calls with `auto` logs the
/// result.
std::string resolve_template(std::string_view name, const Tokenizer& tokenizer);

/// Renders by a built-in template (or `auto`). Input Error when the conversation cannot be rendered: no
/// messages, a role that alpaca does not know, a tokenizer without the tokens that the template writes (they
/// would be learned as plain text and never end a generation).
///   llama-3  <|begin_of_text|>, then <|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|>, contents
///   trimmed (Meta's format) chatml   <|im_start|>ROLE\nCONTENT<|im_end|>\n alpaca   see `alpaca_prompt`; the
///   system message in front, each user turn under "### Instruction:", each
///            assistant turn under "### Response:" with EOS; BOS in front if the tokenizer adds one
Rendered render(std::string_view template_name, std::span<const Message> messages, bool add_generation_prompt,
                const Tokenizer& tokenizer);

/// Encodes the whole text at once and finds the tokens that lie entirely within each trained range; a token
/// that straddles an edge (line feeds of header and answer merged) is not trained. Ranges without a token are
/// left out.
EncodedTurns encode_rendered(const Tokenizer& tokenizer, const Rendered& rendered);

/// The three-section prompt of Stanford Alpaca up to and with "### Response:\n"; the input section only where
/// there is an input. `system` replaces the sentence "Below is an instruction …" in front.
std::string alpaca_prompt(std::string_view instruction, std::string_view input = {},
                          std::string_view system = {});

/// BOS (if the tokenizer adds one) + prompt + completion + EOS, with completion and EOS trained.
/// Input Error when the tokenizer names no EOS.
Rendered build_prompt_completion(const Tokenizer& tokenizer, std::string_view prompt,
                                 std::string_view completion);

}  // namespace unsloth
