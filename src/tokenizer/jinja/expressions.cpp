// Operators by precedence; what they combine is in operands.cpp.
#include <algorithm>
#include <optional>

#include "tokenizer/jinja/parser.h"

namespace unsloth::tokenizer::jinja {
namespace {

std::optional<Operation> comparison_of(const Token& token) {
    static const std::map<std::string_view, Operation> operations = {
        {"==", Operation::equal},      {"!=", Operation::not_equal}, {"<", Operation::less},
        {"<=", Operation::less_equal}, {">", Operation::greater},    {">=", Operation::greater_equal}};
    if (token.is_name("in")) return Operation::in;
    const auto found = operations.find(token.text);
    return token.kind == Token::Kind::op && found != operations.end() ? std::optional(found->second) : std::nullopt;
}

}  // namespace

ExpressionPtr ExpressionParser::expression(bool with_conditional) {
    const Level level = nested();
    const int line = current().line;
    ExpressionPtr value = junction(true);
    while (with_conditional && skip_name("if")) {
        const ExpressionPtr test = junction(true);
        const ExpressionPtr otherwise = skip_name("else") ? expression() : nullptr;
        value = node(line, {value, test, otherwise}, [=](const Frame& frame) {
            if (truthy(test->evaluate(frame))) return value->evaluate(frame);
            if (otherwise) return otherwise->evaluate(frame);
            return Value::undefined(
                cat("the inline if-expression in line ", line, " evaluated to false and no else section was defined."));
        });
    }
    return value;
}

ExpressionPtr ExpressionParser::junction(bool any) {
    const auto operand = [&] { return any ? junction(false) : negation(); };
    ExpressionPtr left = operand();
    while (current().is_name(any ? "or" : "and")) {
        const int line = current().line;
        next();
        const ExpressionPtr right = operand();
        left = node(line, {left, right}, [=](const Frame& frame) {
            Value value = left->evaluate(frame);
            return truthy(value) == any ? value : right->evaluate(frame);
        });
    }
    return left;
}

ExpressionPtr ExpressionParser::negation() {
    if (!current().is_name("not")) return comparison();
    const Level level = nested();
    const int line = current().line;
    next();
    const ExpressionPtr value = negation();
    return node(line, {value}, [=](const Frame& frame) { return Value(!truthy(value->evaluate(frame))); });
}

ExpressionPtr ExpressionParser::comparison() {
    std::vector<ExpressionPtr> operands = {sum()};
    std::vector<Operation> operations;
    const int line = current().line;
    for (;;) {
        const bool negated = current().is_name("not") && ahead().is_name("in");
        if (negated) next();
        const std::optional<Operation> operation = comparison_of(current());
        if (!operation) break;
        next();
        operations.push_back(negated ? Operation::not_in : *operation);
        operands.push_back(sum());
    }
    if (operations.empty()) return operands[0];
    return node(line, operands, [=](const Frame& frame) -> Value {
        Value left = operands[0]->evaluate(frame);
        for (std::size_t i = 0; i < operations.size(); ++i) {
            Value right = operands[i + 1]->evaluate(frame);
            if (!compare(operations[i], left, right)) return false;
            left = std::move(right);
        }
        return true;
    });
}

template <class Operand>
ExpressionPtr ExpressionParser::chain(Operators operators, Operand operand) {
    ExpressionPtr left = operand();
    for (;;) {
        const auto found = std::find_if(operators.begin(), operators.end(),
                                        [&](const auto& entry) { return current().is_op(entry.first); });
        if (found == operators.end()) return left;
        const int line = current().line;
        next();
        const ExpressionPtr right = operand();
        left = node(line, {left, right}, [=, operation = found->second](const Frame& frame) {
            const Value a = left->evaluate(frame), b = right->evaluate(frame);
            Value result = arithmetic(operation, a, b);
            charge(result);
            return result;
        });
    }
}

ExpressionPtr ExpressionParser::sum() {
    return chain({{"+", Operation::add}, {"-", Operation::subtract}}, [this] { return concatenation(); });
}

ExpressionPtr ExpressionParser::concatenation() {
    std::vector<ExpressionPtr> parts = {product()};
    const int line = current().line;
    while (skip_op("~")) parts.push_back(product());
    if (parts.size() == 1) return parts[0];
    return node(line, parts, [=](const Frame& frame) {
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

ExpressionPtr ExpressionParser::product() {
    ExpressionPtr made = chain({{"*", Operation::multiply}, {"%", Operation::modulo}}, [this] { return unary(true); });
    for (const std::string_view op : {"/", "//", "**"}) {
        if (current().is_op(op)) unsupported(cat("the operator ", op));
    }
    return made;
}

ExpressionPtr ExpressionParser::unary(bool with_filters) {
    ExpressionPtr value;
    const int line = current().line;
    if (skip_op("-")) {
        const Level level = nested();
        const ExpressionPtr positive = unary(false);
        value = node(line, {positive}, [=](const Frame& frame) { return negate(positive->evaluate(frame)); });
    } else {
        value = primary();
    }
    value = postfix(std::move(value));
    while (with_filters) {
        if (current().is_op("|")) {
            value = filters(std::move(value));
        } else if (current().is_name("is")) {
            value = test(std::move(value));
        } else if (current().is_op("(")) {
            value = call_of(std::move(value));
        } else {
            break;
        }
    }
    return value;
}

}  // namespace unsloth::tokenizer::jinja
