// What statements and expressions share while parsing: the token stream, names, limits.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/jinja/ast.h"
#include "tokenizer/jinja/lexer.h"

namespace unsloth::tokenizer::jinja {

/// Recursive descent is bounded: a template nested deeper than this is an error, not a stack overflow.
constexpr int deepest_nesting = 150;
/// Chains such as a + b + c … make trees that are high without being nested.
constexpr int highest_expression = 400;

class ExpressionParser {
  public:
    explicit ExpressionParser(std::string_view source) : tokens_(tokenize(source)) {}

  protected:
    class Nesting {
      public:
        explicit Nesting(ExpressionParser& parser);
        ~Nesting() { --parser_.depth_; }
        Nesting(const Nesting&) = delete;
        Nesting& operator=(const Nesting&) = delete;

      private:
        ExpressionParser& parser_;
    };

    const Token& current() const { return tokens_[at_]; }
    const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
    void next() {
        if (at_ + 1 < tokens_.size()) ++at_;
    }
    bool skip_op(std::string_view op);
    bool skip_name(std::string_view name);
    void expect_op(std::string_view op);
    std::string expect_name();
    void expect(Token::Kind kind);
    [[noreturn]] void refuse(const std::string& message, int line = 0) const;
    static std::string describe(const Token& token);

    int name_id(const std::string& name);
    ExpressionPtr node(Expression::Kind kind, int line) const;
    /// Puts a child in place and keeps account of the height.
    void adopt(Expression& parent, ExpressionPtr child) const;

    ExpressionPtr expression(bool with_conditional = true);
    /// An expression, or a tuple where commas follow. `end`: a name that ends it as well.
    ExpressionPtr tuple(bool with_conditional, std::string_view end = {}, bool parenthesized = false);
    ExpressionPtr assignment_target(std::string_view end, bool with_namespace);
    ExpressionPtr filters(ExpressionPtr value, bool first_inline = false);

    /// Filters and tests with unknown names. Jinja refuses them at once, except within conditions, where a
    /// template may ask first whether there is one: what innermost encloses the use decides.
    struct UnknownName {
        std::string message;
        int line;
        bool decided = false;
    };
    void conditional_since(std::size_t mark);
    void refuse_unknown_since(std::size_t mark) const;
    std::vector<UnknownName> unknown_;

    Program program_;
    std::vector<int> referenced_;  ///< names read since the start, for macros that use caller or varargs

  private:
    template <class Operand>
    ExpressionPtr chain(std::initializer_list<std::pair<std::string_view, Operation>> operators, Operand operand);
    ExpressionPtr any_of();
    ExpressionPtr all_of();
    ExpressionPtr negation();
    ExpressionPtr comparison();
    ExpressionPtr sum();
    ExpressionPtr concatenation();
    ExpressionPtr product();
    ExpressionPtr power();
    ExpressionPtr unary(bool with_filters);
    ExpressionPtr primary(bool with_namespace);
    ExpressionPtr list();
    ExpressionPtr dict();
    ExpressionPtr postfix(ExpressionPtr value);
    ExpressionPtr subscript(ExpressionPtr value);
    ExpressionPtr call(ExpressionPtr value);
    ExpressionPtr test(ExpressionPtr value);
    void arguments(Expression& into);
    std::string dotted_name();

    std::vector<Token> tokens_;
    std::size_t at_ = 0;
    int depth_ = 0;
    std::map<std::string, int, std::less<>> ids_;
};

}  // namespace unsloth::tokenizer::jinja
