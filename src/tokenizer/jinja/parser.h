// Source text to functions. Failure with the line for what Jinja's parser refuses, and for what is not used in chat
// templates.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/jinja/lexer.h"
#include "tokenizer/jinja/runtime.h"

namespace unsloth::tokenizer::jinja {

Program parse(std::string_view source);

/// What statements and expressions share while parsing: the token stream, names, limits; and the expressions.
class ExpressionParser {
  public:
    explicit ExpressionParser(std::string_view source) : tokens_(tokenize(source)) {}

  protected:
    /// Recursive descent is bounded.
    Level nested() { return {depth_, 150, "the template nests deeper than 150 levels", current().line}; }
    const Token& current() const { return tokens_[at_]; }
    const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
    void next() { at_ = std::min(at_ + 1, tokens_.size() - 1); }
    bool skip_op(std::string_view op);
    bool skip_name(std::string_view name);
    void expect_op(std::string_view op);
    std::string expect_name();
    void expect(Token::Kind kind);
    [[noreturn]] void refuse(const std::string& message, int line = 0) const;
    [[noreturn]] void unsupported(const std::string& construct) const {
        refuse(construct + " is not supported in chat templates");
    }
    static std::string describe(const Token& token);
    int name_id(const std::string& name);

    ExpressionPtr expression(bool with_conditional = true);
    /// An expression, or a tuple where commas follow.
    ExpressionPtr tuple(bool with_conditional, bool parenthesized = false);
    Target target(bool with_member);
    ExpressionPtr filters(ExpressionPtr value, bool first_inline = false);
    /// An expression of these children; what fails in it is in `line`.
    template <class Run>
    ExpressionPtr node(int line, const std::vector<ExpressionPtr>& children, Run run) const;

    Program program_;

  private:
    struct CallArguments {
        std::vector<ExpressionPtr> positional;
        std::vector<std::pair<std::string, ExpressionPtr>> named;
        ExpressionPtr more;  ///< *expression, may be null
        std::vector<ExpressionPtr> children(ExpressionPtr first) const;
        void evaluate(const Frame& frame, Arguments& out) const;
    };
    using Operators = std::initializer_list<std::pair<std::string_view, Operation>>;

    template <class Operand>
    ExpressionPtr chain(Operators operators, Operand operand);
    ExpressionPtr junction(bool any);  ///< `or`, else `and`: the value that decides
    ExpressionPtr negation();
    ExpressionPtr comparison();
    ExpressionPtr sum();
    ExpressionPtr concatenation();
    ExpressionPtr product();
    ExpressionPtr unary(bool with_filters);
    ExpressionPtr primary();
    ExpressionPtr constant(Value value) const;
    ExpressionPtr variable(const Token& name);
    std::vector<ExpressionPtr> elements(std::string_view close);
    ExpressionPtr sequence(int line, std::vector<ExpressionPtr> children, bool list) const;
    ExpressionPtr dict();
    ExpressionPtr postfix(ExpressionPtr value);
    ExpressionPtr subscript(ExpressionPtr value);
    ExpressionPtr call_of(ExpressionPtr value);
    ExpressionPtr test(ExpressionPtr value);
    CallArguments arguments();

    std::vector<Token> tokens_;
    std::size_t at_ = 0;
    int depth_ = 0;
    std::map<std::string, int, std::less<>> ids_;
};

template <class Run>
ExpressionPtr ExpressionParser::node(int line, const std::vector<ExpressionPtr>& children, Run run) const {
    constexpr int highest = 400;  // chains such as a + b + c … make trees that are high without being nested
    int height = 1;
    for (const ExpressionPtr& child : children) {
        if (child) height = std::max(height, child->height + 1);
    }
    if (height > highest) refuse(cat("an expression of more than ", highest, " operations in a row"), line);
    return std::make_shared<Expression>(
        Expression{[line, run = std::move(run)](const Frame& frame) { return run_at(line, frame, run); }, height});
}

}  // namespace unsloth::tokenizer::jinja
