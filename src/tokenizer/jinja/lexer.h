// Templates as tokens, by the rules of Jinja's lexer with trim_blocks and lstrip_blocks.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/jinja/text.h"
#include "tokenizer/jinja/value.h"

namespace unsloth::tokenizer::jinja {

struct Token {
    enum class Kind { data, name, string, integer, op, variable_begin, variable_end, block_begin, block_end, end };
    Kind kind;
    int line;
    std::string text;  ///< data, name, unescaped string, operator, tag
    Value number;      ///< of an integer token
    int column = 0;    ///< in characters, from 1

    Place place() const { return {line, column}; }
    bool is(Kind k, std::string_view t) const { return kind == k && text == t; }
    bool is_op(std::string_view t) const { return is(Kind::op, t); }
    bool is_name(std::string_view t) const { return is(Kind::name, t); }
};

/// All tokens, the last one of kind `end`. Failure with the place for what Jinja's lexer refuses.
std::vector<Token> tokenize(std::string_view source);

/// The tokens of a template, read from first to last.
class TokenStream {
  public:
    explicit TokenStream(std::string_view source) : tokens_(tokenize(source)) {}

  protected:
    using Kind = Token::Kind;

    const Token& current() const { return tokens_[at_]; }
    const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
    void next() { at_ = std::min(at_ + 1, tokens_.size() - 1); }
    bool skip(Kind kind, std::string_view text) {
        const bool found = current().is(kind, text);
        if (found) next();
        return found;
    }
    bool skip_op(std::string_view op) { return skip(Kind::op, op); }
    bool skip_name(std::string_view name) { return skip(Kind::name, name); }
    void expect_op(std::string_view op) {
        if (!skip_op(op)) refuse(cat("expected '", op, "', got ", describe(current())));
    }
    std::string expect_name() {
        if (current().kind != Kind::name) refuse(cat("expected a name, got ", describe(current())));
        std::string name = current().text;
        next();
        return name;
    }
    [[noreturn]] void refuse(const std::string& message) const { refuse(message, current().place()); }
    [[noreturn]] void refuse(const std::string& message, Place at) const { throw Failure(message, at); }
    [[noreturn]] void unsupported(const std::string& construct) const {
        refuse(construct + " is not supported in chat templates");
    }
    static std::string describe(const Token& token) {
        if (token.kind == Kind::end) return "the end of the template";
        if (token.kind == Kind::data) return "template text";
        if (token.kind == Kind::integer) return "a number";
        return token.kind == Kind::string ? cat("the string ", text::repr(token.text)) : cat("'", token.text, "'");
    }

  private:
    std::vector<Token> tokens_;
    std::size_t at_ = 0;
};

}  // namespace unsloth::tokenizer::jinja
