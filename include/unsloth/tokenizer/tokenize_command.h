// `unsloth-train tokenize`: JSON Lines in, ids out, to check a tokenizer or template against another program.
#pragma once

#include <istream>
#include <ostream>
#include <string>

#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::tokenizer {

struct TokenizeOptions {
    std::string chat_template = "auto";       ///< for rows with messages
    std::string chat_template_kwargs = "{}";  ///< its variables: a JSON object
    bool decode = false;                      ///< "text" is what the ids decode to; rows with "ids" need it
    bool no_special = false;                  ///< text: add no special tokens; decoding: leave special tokens out
};

/// One object out per line in: {"ids", "text", "trained"}. Rows are
///   {"text"}                                 encoded with the post-processor's special tokens unless
///   `no_special`
///   {"messages", "add_generation_prompt"?, …}   rendered by the template, which writes its special tokens
///                                            itself; further keys are variables of the template (see
///                                            ChatTemplate::render)
///   {"ids"}                                  only with `decode`
/// "text" is the text that was encoded (with `decode`: what the ids decode to), "trained" the ranges of token
/// positions that belong to assistant turns (empty for text and ids). Blank lines are skipped.
/// A malformed line is an input Error with its line number; lines before it have been written.
void tokenize_stream(const Tokenizer& tokenizer, const TokenizeOptions& options, std::istream& in, std::ostream& out);

/// `unsloth-train tokenize --measure N`, the speed of encoding without reading and writing JSON: reads all rows of
/// {"text"}, encodes them `rounds` times on the calling thread, and writes one object:
///   {"rows", "bytes", "tokens", "seconds": [of each round]}
/// Input Error with the line number for anything but rows with a text.
void measure_encoding(const Tokenizer& tokenizer, bool add_special, int rounds, std::istream& in, std::ostream& out);

}  // namespace unsloth::tokenizer
