// Templates as tokens, by the rules of Jinja's lexer with trim_blocks and lstrip_blocks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/jinja/value.h"

namespace unsloth::tokenizer::jinja {

struct Token {
    enum class Kind { data, name, string, integer, op, variable_begin, variable_end, block_begin, block_end, end };
    Kind kind;
    int line;
    std::string text;  ///< data, name, unescaped string, operator, tag
    Value number;      ///< of an integer token

    bool is(Kind k, std::string_view t) const { return kind == k && text == t; }
    bool is_op(std::string_view t) const { return is(Kind::op, t); }
    bool is_name(std::string_view t) const { return is(Kind::name, t); }
};

/// All tokens, the last one of kind `end`. Failure with the line for what Jinja's lexer refuses.
std::vector<Token> tokenize(std::string_view source);

}  // namespace unsloth::tokenizer::jinja
