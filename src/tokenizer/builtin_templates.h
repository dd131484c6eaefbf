// Chat templates that a user can ask for by name, written in Jinja like a model's own, and what prompts of all kinds
// begin and end with.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::tokenizer {

struct BuiltinTemplate {
    std::string_view name;
    std::string_view front, body;
    /// Tokens that the template writes: a tokenizer without one of them would have it learned as plain text,
    /// and it would never end a generation.
    std::span<const std::string_view> tokens;
    bool writes_eos = false;  ///< the tokenizer must name an end-of-sequence token
    bool writes_bos = false;  ///< … and a beginning-of-sequence token

    /// The whole template. Besides what every template is given it uses sequence_start (BOS where the
    /// tokenizer adds one) and alpaca_preamble.
    std::string source() const;
};

/// BOS as text where the tokenizer adds one to every text, else nothing.
std::string leading_bos(const Tokenizer& tokenizer);
/// EOS as text; input Error when the tokenizer names none.
std::string end_of_sequence(const Tokenizer& tokenizer);
/// `system`, or without one the sentence that Stanford Alpaca begins with.
std::string alpaca_preamble(std::string_view system, bool has_input);

std::span<const BuiltinTemplate> builtin_template_table();
/// Null for a name that is not built in.
const BuiltinTemplate* find_builtin_template(std::string_view name);

}  // namespace unsloth::tokenizer
