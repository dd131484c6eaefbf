// Expressions: the text between {{ and }} and in the heads of statements.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/jinja/functions.h"
#include "tokenizer/jinja/lexer.h"
#include "tokenizer/jinja/runtime.h"

namespace unsloth::tokenizer::jinja {

/// Recursive descent over a template's tokens. Failure with the line for what Jinja's parser refuses, and for what is
/// not used in chat templates.
class ExpressionParser : public TokenStream {
  public:
    using TokenStream::TokenStream;

  protected:
    /// Recursive descent is bounded.
    Level nested() { return {depth_, 150, "the template nests deeper than 150 levels", current().place()}; }
    int name_id(const std::string& name) {
        const auto [it, added] = ids_.emplace(name, static_cast<int>(program_.names.size()));
        if (added) program_.names.push_back(name);
        return it->second;
    }

    /// An expression of these children; what fails in it is at `at`.
    template <class Run>
    ExpressionPtr node(Place at, const std::vector<ExpressionPtr>& children, Run run) const {
        constexpr int highest = 400;  // chains such as a + b + c … make trees that are high without being nested
        int height = 1;
        for (const ExpressionPtr& child : children) height = std::max(height, child ? child->height + 1 : 1);
        if (height > highest) refuse(cat("an expression of more than ", highest, " operations in a row"), at);
        return std::make_shared<Expression>(
            Expression{[at, run = std::move(run)](const Frame& frame) { return run_at(at, frame, run); }, height});
    }

    ExpressionPtr expression(bool with_conditional = true) {
        const Level level = nested();
        const Place at = current().place();
        ExpressionPtr value = junction(true);
        while (with_conditional && skip_name("if")) {
            const ExpressionPtr test = junction(true), otherwise = skip_name("else") ? expression() : nullptr;
            value = node(at, {value, test, otherwise}, [=](const Frame& frame) {
                if (truthy(test->evaluate(frame))) return value->evaluate(frame);
                if (otherwise) return otherwise->evaluate(frame);
                return Value::undefined(cat("the inline if-expression in line ", at.line,
                                            " evaluated to false and no else section was defined."));
            });
        }
        return value;
    }

    /// An expression, or a tuple where commas follow.
    ExpressionPtr tuple(bool with_conditional, bool parenthesized = false) {
        const Level level = nested();
        const Place at = current().place();
        std::vector<ExpressionPtr> children;
        bool comma = false;
        while (current().kind != Kind::variable_end && current().kind != Kind::block_end && !current().is_op(")")) {
            children.push_back(expression(with_conditional));
            if (!skip_op(",")) break;
            comma = true;
        }
        if (!comma && children.size() == 1) return children[0];
        if (!comma && !parenthesized) refuse(cat("expected an expression, got ", describe(current())));
        return sequence(at, std::move(children), Value::tuple);
    }

    ExpressionPtr filters(ExpressionPtr value, bool first_inline = false) {
        while (std::exchange(first_inline, false) || skip_op("|")) {
            const Place at = current().place();
            const std::string name = expect_name();
            value = applied(at, "filter", name, find_filter(name), value,
                            current().is_op("(") ? arguments() : CallArguments());
        }
        return value;
    }

    Program program_;

  private:
    // Operators by precedence, the loosest first.

    /// `or`, else `and`: the value that decides.
    ExpressionPtr junction(bool any) {
        const auto operand = [&] { return any ? junction(false) : negation(); };
        ExpressionPtr left = operand();
        for (Place at = current().place(); skip_name(any ? "or" : "and"); at = current().place()) {
            const ExpressionPtr right = operand();
            left = node(at, {left, right}, [=](const Frame& frame) {
                Value value = left->evaluate(frame);
                return truthy(value) == any ? value : right->evaluate(frame);
            });
        }
        return left;
    }

    ExpressionPtr negation() {
        if (!current().is_name("not")) return comparison();
        const Level level = nested();
        const Place at = current().place();
        next();
        const ExpressionPtr value = negation();
        return node(at, {value}, [=](const Frame& frame) { return Value(!truthy(value->evaluate(frame))); });
    }

    /// Reads the operator of a comparison, if one follows.
    std::optional<Operation> comparing() {
        static constexpr std::pair<std::string_view, Operation> operators[] = {
            {"==", Operation::eq}, {"!=", Operation::ne}, {"<", Operation::lt},
            {"<=", Operation::le}, {">", Operation::gt},  {">=", Operation::ge}};
        for (const auto& [symbol, operation] : operators) {
            if (skip_op(symbol)) return operation;
        }
        if (skip_name("in")) return Operation::in;
        if (!current().is_name("not") || !ahead().is_name("in")) return std::nullopt;
        next(), next();
        return Operation::not_in;
    }

    ExpressionPtr comparison() {
        std::vector<ExpressionPtr> operands = {arithmetic()};
        std::vector<Operation> operations;
        const Place at = current().place();
        while (const std::optional<Operation> operation = comparing()) {
            operations.push_back(*operation);
            operands.push_back(arithmetic());
        }
        if (operations.empty()) return operands[0];
        return node(at, operands, [=](const Frame& frame) -> Value {
            Value left = operands[0]->evaluate(frame);
            for (std::size_t i = 0; i < operations.size(); ++i) {
                Value right = operands[i + 1]->evaluate(frame);
                if (!compare(operations[i], left, right)) return false;
                left = std::move(right);
            }
            return true;
        });
    }

    /// Sums, or products.
    ExpressionPtr arithmetic(bool product = false) {
        struct Operator {
            std::string_view symbol;
            Operation operation;
        };
        static constexpr Operator sums[] = {{"+", Operation::add}, {"-", Operation::subtract}};
        static constexpr Operator products[] = {{"*", Operation::multiply}, {"%", Operation::modulo}};
        const auto operand = [&] { return product ? unary(true) : concatenation(); };
        ExpressionPtr left = operand();
        for (;;) {
            const auto& operators = product ? products : sums;
            const auto found = std::ranges::find_if(operators, [&](auto& op) { return current().is_op(op.symbol); });
            if (found == std::end(operators)) return left;
            const Place at = current().place();
            next();
            const ExpressionPtr right = operand();
            left = node(at, {left, right}, [=, operation = found->operation](const Frame& frame) {
                const Value a = left->evaluate(frame), b = right->evaluate(frame);
                Value result = jinja::arithmetic(operation, a, b);
                charge(result);
                return result;
            });
        }
    }

    ExpressionPtr concatenation() {
        std::vector<ExpressionPtr> parts = {arithmetic(true)};
        const Place at = current().place();
        while (skip_op("~")) parts.push_back(arithmetic(true));
        if (parts.size() == 1) return parts[0];
        return node(at, parts, [=](const Frame& frame) {
            std::string joined;
            for (const ExpressionPtr& part : parts) {
                joined += to_string(part->evaluate(frame));
                check_string(joined.size());
            }
            Value result(std::move(joined));
            charge(result);
            return result;
        });
    }

    ExpressionPtr unary(bool with_filters) {
        ExpressionPtr value;
        const Place at = current().place();
        if (skip_op("-")) {
            const Level level = nested();
            const ExpressionPtr positive = unary(false);
            value = node(at, {positive}, [=](const Frame& frame) { return negate(positive->evaluate(frame)); });
        } else {
            value = primary();
        }
        value = postfix(std::move(value));
        for (bool more = with_filters; more;) {
            if (current().is_op("|")) {
                value = filters(std::move(value));
            } else if (skip_name("is")) {
                value = test(std::move(value));
            } else if (current().is_op("(")) {
                value = call_of(std::move(value));
            } else {
                more = false;
            }
        }
        for (const std::string_view op : {"/", "//", "**"}) {
            if (current().is_op(op)) unsupported(cat("the operator ", op));
        }
        return value;
    }

    // What operators combine: literals, names, calls, subscripts, filters, tests.

    ExpressionPtr constant(Value value) const {
        return node(current().place(), {}, [value = std::move(value)](const Frame&) { return value; });
    }

    ExpressionPtr variable(const Token& name) {
        return node(name.place(), {},
                    [id = name_id(name.text), name = name.text, global = find_global(name.text)](const Frame& frame) {
                        if (const Value* found = frame.scope->find(id)) return *found;
                        return global ? *global : Value::undefined(cat("'", name, "' is undefined"));
                    });
    }

    ExpressionPtr primary() {
        const Token token = current();
        next();
        if (token.kind == Kind::name) {
            if (token.text == "true" || token.text == "True") return constant(true);
            if (token.text == "false" || token.text == "False") return constant(false);
            return token.text == "none" || token.text == "None" ? constant({}) : variable(token);
        }
        if (token.kind == Kind::integer) return constant(token.number);
        if (token.kind == Kind::string) {
            std::string joined = token.text;
            for (; current().kind == Kind::string; next()) joined += current().text;
            return constant(std::move(joined));
        }
        if (token.is_op("(")) {
            ExpressionPtr made = tuple(true, true);
            expect_op(")");
            return made;
        }
        if (token.is_op("[")) return sequence(token.place(), elements("]"), Value::list);
        if (token.is_op("{")) return dict();
        refuse(cat("unexpected ", describe(token)), token.place());
    }

    /// Up to and with `close`; with `pairs` keys and values in turn.
    std::vector<ExpressionPtr> elements(std::string_view close, bool pairs = false) {
        std::vector<ExpressionPtr> children;
        while (!skip_op(close)) {
            if (!children.empty()) expect_op(",");
            if (skip_op(close)) break;
            children.push_back(expression());
            if (!pairs) continue;
            expect_op(":");
            children.push_back(expression());
        }
        return children;
    }

    ExpressionPtr sequence(Place at, std::vector<ExpressionPtr> children, Value (*make)(Items)) const {
        return node(at, children, [children, make](const Frame& frame) {
            Items items;
            items.reserve(children.size());
            for (const ExpressionPtr& child : children) items.push_back(child->evaluate(frame));
            return make(std::move(items));
        });
    }

    ExpressionPtr dict() {
        const Place at = current().place();
        const std::vector<ExpressionPtr> children = elements("}", true);
        return node(at, children, [children](const Frame& frame) -> Value {
            auto made = std::make_shared<Dict>();
            for (std::size_t i = 0; i < children.size(); i += 2) {
                const Value key = children[i]->evaluate(frame);
                made->set(key, children[i + 1]->evaluate(frame));
            }
            return made;
        });
    }

    ExpressionPtr postfix(ExpressionPtr value) {
        for (;;) {
            if (current().is_op(".") || current().is_op("[")) {
                value = subscript(std::move(value));
            } else if (current().is_op("(")) {
                value = call_of(std::move(value));
            } else {
                return value;
            }
        }
    }

    ExpressionPtr subscript(ExpressionPtr value);
    CallArguments arguments();
    ExpressionPtr call_of(ExpressionPtr callee);

    /// A filter's or test's value; `function` is null for a name that is not known.
    ExpressionPtr applied(Place at, const char* what, const std::string& name, const Native* function,
                          const ExpressionPtr& value, const CallArguments& given) const {
        return node(at, given.children(value), [=](const Frame& frame) {
            Arguments all;
            all.positional.push_back(value->evaluate(frame));
            given.evaluate(frame, all);
            if (!function) fail(cat("the ", what, " '", name, "' is not supported in chat templates"));
            return call(frame.rendering, *function, all);
        });
    }

    ExpressionPtr test(ExpressionPtr value);

    int depth_ = 0;
    std::map<std::string, int, std::less<>> ids_;
};

}  // namespace unsloth::tokenizer::jinja
