// Tokens, names, and operators by precedence; operands are in operand_parser.cpp.
#include <algorithm>
#include <optional>

#include "tokenizer/jinja/parser_base.h"
#include "tokenizer/jinja/text.h"
#include "unsloth/core/error.h"

namespace unsloth::tokenizer::jinja {
namespace {

using Kind = Expression::Kind;

std::optional<Operation> comparison_of(const Token& token) {
    if (token.kind != Token::Kind::op) return std::nullopt;
    if (token.text == "==") return Operation::equal;
    if (token.text == "!=") return Operation::not_equal;
    if (token.text == "<") return Operation::less;
    if (token.text == "<=") return Operation::less_equal;
    if (token.text == ">") return Operation::greater;
    if (token.text == ">=") return Operation::greater_equal;
    return std::nullopt;
}

}  // namespace

ExpressionParser::Nesting::Nesting(ExpressionParser& parser) : parser_(parser) {
    if (++parser_.depth_ > deepest_nesting) {
        const int depth = parser_.depth_--;
        parser_.refuse(cat("the template nests deeper than ", depth - 1, " levels"));
    }
}

bool ExpressionParser::skip_op(std::string_view op) {
    const bool found = current().is_op(op);
    if (found) next();
    return found;
}

bool ExpressionParser::skip_name(std::string_view name) {
    const bool found = current().is_name(name);
    if (found) next();
    return found;
}

void ExpressionParser::expect_op(std::string_view op) {
    if (!skip_op(op)) refuse(cat("expected '", op, "', got ", describe(current())));
}

std::string ExpressionParser::expect_name() {
    if (current().kind != Token::Kind::name) refuse(cat("expected a name, got ", describe(current())));
    std::string name = current().text;
    next();
    return name;
}

void ExpressionParser::expect(Token::Kind kind) {
    if (current().kind != kind) {
        refuse(cat("expected ", kind == Token::Kind::block_end ? "end of statement block" : "end of print statement",
                   ", got ", describe(current())));
    }
    next();
}

void ExpressionParser::refuse(const std::string& message, int line) const {
    throw Failure(message, line > 0 ? line : current().line);
}

std::string ExpressionParser::describe(const Token& token) {
    switch (token.kind) {
        case Token::Kind::end:
            return "the end of the template";
        case Token::Kind::data:
            return "template text";
        case Token::Kind::variable_begin:
            return "'{{'";
        case Token::Kind::variable_end:
            return "'}}'";
        case Token::Kind::block_begin:
            return "'{%'";
        case Token::Kind::block_end:
            return "'%}'";
        case Token::Kind::integer:
        case Token::Kind::floating:
            return "a number";
        case Token::Kind::string:
            return cat("the string ", text::repr(token.text));
        default:
            return cat("'", token.text, "'");
    }
}

int ExpressionParser::name_id(const std::string& name) {
    const auto [it, added] = ids_.emplace(name, static_cast<int>(program_.names.size()));
    if (added) program_.names.push_back(name);
    return it->second;
}

ExpressionPtr ExpressionParser::node(Kind kind, int line) const {
    auto made = std::make_unique<Expression>();
    made->kind = kind;
    made->line = line;
    return made;
}

void ExpressionParser::adopt(Expression& parent, ExpressionPtr child) const {
    if (child) {
        parent.height = std::max(parent.height, child->height + 1);
        if (parent.height > highest_expression)
            refuse(cat("an expression of more than ", highest_expression, " operations in a row"), parent.line);
    }
    parent.children.push_back(std::move(child));
}

void ExpressionParser::conditional_since(std::size_t mark) {
    for (std::size_t i = mark; i < unknown_.size(); ++i) unknown_[i].decided = true;
}

void ExpressionParser::refuse_unknown_since(std::size_t mark) const {
    for (std::size_t i = mark; i < unknown_.size(); ++i) {
        if (!unknown_[i].decided) refuse(unknown_[i].message, unknown_[i].line);
    }
}

ExpressionPtr ExpressionParser::expression(bool with_conditional) {
    const Nesting nesting(*this);
    const std::size_t mark = unknown_.size();
    const int line = current().line;
    ExpressionPtr value = any_of();
    while (with_conditional && skip_name("if")) {
        ExpressionPtr made = node(Kind::conditional, line);
        adopt(*made, std::move(value));
        adopt(*made, any_of());
        adopt(*made, skip_name("else") ? expression() : nullptr);
        value = std::move(made);
        conditional_since(mark);
    }
    return value;
}

ExpressionPtr ExpressionParser::any_of() {
    ExpressionPtr left = all_of();
    while (current().is_name("or")) {
        ExpressionPtr made = node(Kind::logical_or, current().line);
        next();
        adopt(*made, std::move(left));
        adopt(*made, all_of());
        left = std::move(made);
    }
    return left;
}

ExpressionPtr ExpressionParser::all_of() {
    ExpressionPtr left = negation();
    while (current().is_name("and")) {
        ExpressionPtr made = node(Kind::logical_and, current().line);
        next();
        adopt(*made, std::move(left));
        adopt(*made, negation());
        left = std::move(made);
    }
    return left;
}

ExpressionPtr ExpressionParser::negation() {
    if (!current().is_name("not")) return comparison();
    const Nesting nesting(*this);
    ExpressionPtr made = node(Kind::logical_not, current().line);
    next();
    adopt(*made, negation());
    return made;
}

ExpressionPtr ExpressionParser::comparison() {
    ExpressionPtr first = sum();
    ExpressionPtr made;
    for (;;) {
        std::optional<Operation> op = comparison_of(current());
        if (!op && current().is_name("in")) op = Operation::in;
        if (!op && current().is_name("not") && ahead().is_name("in")) {
            op = Operation::not_in;
            next();
        }
        if (!op) break;
        if (!made) {
            made = node(Kind::compare, current().line);
            adopt(*made, std::move(first));
        }
        next();
        made->operations.push_back(*op);
        adopt(*made, sum());
    }
    return made ? std::move(made) : std::move(first);
}

template <class Operand>
ExpressionPtr ExpressionParser::chain(std::initializer_list<std::pair<std::string_view, Operation>> operators,
                                      Operand operand) {
    ExpressionPtr left = operand();
    for (;;) {
        const auto found = std::find_if(operators.begin(), operators.end(),
                                        [&](const auto& entry) { return current().is_op(entry.first); });
        if (found == operators.end()) return left;
        ExpressionPtr made = node(Kind::binary, current().line);
        made->operation = found->second;
        next();
        adopt(*made, std::move(left));
        adopt(*made, operand());
        left = std::move(made);
    }
}

ExpressionPtr ExpressionParser::sum() {
    return chain({{"+", Operation::add}, {"-", Operation::subtract}}, [this] { return concatenation(); });
}

ExpressionPtr ExpressionParser::concatenation() {
    ExpressionPtr first = product();
    if (!current().is_op("~")) return first;
    ExpressionPtr made = node(Kind::concatenate, current().line);
    adopt(*made, std::move(first));
    while (skip_op("~")) adopt(*made, product());
    return made;
}

ExpressionPtr ExpressionParser::product() {
    return chain({{"*", Operation::multiply},
                  {"/", Operation::divide},
                  {"//", Operation::floor_divide},
                  {"%", Operation::modulo}},
                 [this] { return power(); });
}

ExpressionPtr ExpressionParser::power() {  // from the left, unlike Python's
    return chain({{"**", Operation::power}}, [this] { return unary(true); });
}

ExpressionPtr ExpressionParser::unary(bool with_filters) {
    ExpressionPtr value;
    const int line = current().line;
    if (current().is_op("-") || current().is_op("+")) {
        const Nesting nesting(*this);
        value = node(current().is_op("-") ? Kind::negate : Kind::plus, line);
        next();
        adopt(*value, unary(false));
    } else {
        value = primary(false);
    }
    value = postfix(std::move(value));
    if (!with_filters) return value;
    for (;;) {
        if (current().is_op("|")) {
            value = filters(std::move(value));
        } else if (current().is_name("is")) {
            value = test(std::move(value));
        } else if (current().is_op("(")) {
            value = call(std::move(value));
        } else {
            return value;
        }
    }
}

}  // namespace unsloth::tokenizer::jinja
