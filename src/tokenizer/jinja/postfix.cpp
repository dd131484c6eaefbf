// What follows a value: subscripts, slices, calls and tests.
#include <memory>
#include <string>
#include <utility>

#include "tokenizer/jinja/expressions.h"

namespace unsloth::tokenizer::jinja {

ExpressionPtr ExpressionParser::subscript(ExpressionPtr value) {
    const Place at = current().place();
    const auto item_of = [&](const ExpressionPtr& key) {
        return node(at, {value, key}, [value, key](const Frame& frame) {
            const Value owner = value->evaluate(frame);
            return item(owner, key->evaluate(frame));
        });
    };
    if (skip_op(".")) {
        if (current().kind == Kind::integer) return item_of(primary());
        return node(at, {value},
                    [value, name = expect_name()](const Frame& frame) { return member(value->evaluate(frame), name); });
    }
    expect_op("[");
    ExpressionPtr parts[3];  // start, stop, step; a missing one is null
    bool is_slice = false;
    for (ExpressionPtr& part : parts) {
        if (!current().is_op(":") && !current().is_op("]")) part = expression();
        if (!skip_op(":")) break;
        is_slice = true;
    }
    if (current().is_op(",") || (!is_slice && !parts[0])) unsupported("[ ] with other than one key or slice");
    expect_op("]");
    if (!is_slice) return item_of(parts[0]);
    return node(at, {value, parts[0], parts[1], parts[2]},
                [value, start = parts[0], stop = parts[1], step = parts[2]](const Frame& frame) {
                    const auto part = [&](const ExpressionPtr& e) { return e ? e->evaluate(frame) : Value(); };
                    const Value owner = value->evaluate(frame), from = part(start), to = part(stop);
                    return slice(owner, from, to, part(step));
                });
}

CallArguments ExpressionParser::arguments() {
    const Level level = nested();
    const Place at = current().place();
    CallArguments out;
    expect_op("(");
    for (bool first = true; !skip_op(")"); first = false) {
        if (!first) expect_op(",");
        if (skip_op(")")) break;
        if (current().is_op("**")) unsupported("**");
        const bool named = current().kind == Kind::name && ahead().is_op("=");
        if (out.more || (!named && !out.named.empty())) refuse("invalid syntax for function call expression", at);
        if (skip_op("*")) {
            out.more = expression();
        } else if (!named) {
            out.positional.push_back(expression());
        } else {
            std::string name = expect_name();
            next();
            for (const auto& [other, ignored] : out.named) {
                if (other == name) refuse(cat("keyword argument repeated: ", name), at);
            }
            out.named.emplace_back(std::move(name), expression());
        }
    }
    return out;
}

ExpressionPtr ExpressionParser::call_of(ExpressionPtr callee) {
    const Place at = current().place();
    const CallArguments given = arguments();
    const ExpressionPtr made = node(at, given.children(callee), [callee, given](const Frame& frame) {
        const Value* const caller = std::exchange(frame.rendering.caller, nullptr);
        const Value function = callee->evaluate(frame);
        Arguments all;
        given.evaluate(frame, all);
        if (caller) all.named.emplace_back("caller", *caller);
        return call(frame.rendering, function, all);
    });
    return std::make_shared<Expression>(Expression{made->evaluate, made->height, true});
}

ExpressionPtr ExpressionParser::test(ExpressionPtr value) {
    const Place at = current().place();
    const bool negated = skip_name("not");
    const std::string name = expect_name();
    const Token& token = current();
    CallArguments given;
    const bool argument = token.kind == Kind::name || token.kind == Kind::string || token.kind == Kind::integer ||
                          token.is_op("[") || token.is_op("{");
    if (token.is_op("(")) {
        given = arguments();
    } else if (argument && !token.is_name("else") && !token.is_name("or") && !token.is_name("and")) {
        if (token.is_name("is")) refuse("tests cannot be chained with is");
        given.positional.push_back(postfix(primary()));
    }
    const ExpressionPtr holds = applied(at, "test", name, find_test(name), value, given);
    if (!negated) return holds;
    return node(at, {holds}, [holds](const Frame& frame) { return Value(!truthy(holds->evaluate(frame))); });
}

}  // namespace unsloth::tokenizer::jinja
