// What operators combine: literals, names, calls, subscripts, filters, tests.
#include <algorithm>

#include "tokenizer/jinja/functions.h"
#include "tokenizer/jinja/parser.h"

namespace unsloth::tokenizer::jinja {

ExpressionPtr ExpressionParser::constant(Value value) const {
    return node(current().line, {}, [value = std::move(value)](const Frame&) { return value; });
}

ExpressionPtr ExpressionParser::variable(const Token& name) {
    return node(name.line, {},
                [id = name_id(name.text), name = name.text, global = find_global(name.text)](const Frame& frame) {
                    if (const Value* found = frame.scope->find(id)) return *found;
                    return global ? *global : Value::undefined(cat("'", name, "' is undefined"));
                });
}

ExpressionPtr ExpressionParser::primary() {
    const Token token = current();
    next();
    if (token.kind == Token::Kind::name) {
        if (token.text == "true" || token.text == "True") return constant(true);
        if (token.text == "false" || token.text == "False") return constant(false);
        return token.text == "none" || token.text == "None" ? constant({}) : variable(token);
    }
    if (token.kind == Token::Kind::integer) return constant(token.number);
    if (token.kind == Token::Kind::string) {
        std::string joined = token.text;
        for (; current().kind == Token::Kind::string; next()) joined += current().text;
        return constant(std::move(joined));
    }
    if (token.is_op("(")) {
        ExpressionPtr made = tuple(true, true);
        expect_op(")");
        return made;
    }
    if (token.is_op("[")) return sequence(token.line, elements("]"), true);
    if (token.is_op("{")) return dict();
    refuse(cat("unexpected ", describe(token)), token.line);
}

/// Up to and with `close`.
std::vector<ExpressionPtr> ExpressionParser::elements(std::string_view close) {
    std::vector<ExpressionPtr> children;
    while (!skip_op(close)) {
        if (!children.empty()) expect_op(",");
        if (skip_op(close)) break;
        children.push_back(expression());
    }
    return children;
}

ExpressionPtr ExpressionParser::sequence(int line, std::vector<ExpressionPtr> children, bool list) const {
    return node(line, children, [children, list](const Frame& frame) {
        Items items;
        items.reserve(children.size());
        for (const ExpressionPtr& child : children) items.push_back(child->evaluate(frame));
        return list ? Value::list(std::move(items)) : Value::tuple(std::move(items));
    });
}

ExpressionPtr ExpressionParser::tuple(bool with_conditional, bool parenthesized) {
    const Level level = nested();
    const int line = current().line;
    std::vector<ExpressionPtr> children;
    bool comma = false;
    for (;;) {
        const bool ends = current().kind == Token::Kind::variable_end || current().kind == Token::Kind::block_end ||
                          current().is_op(")");
        if (ends) break;
        children.push_back(expression(with_conditional));
        if (!skip_op(",")) break;
        comma = true;
    }
    if (!comma && children.size() == 1) return children[0];
    if (!comma && !parenthesized) refuse(cat("expected an expression, got ", describe(current())));
    return sequence(line, std::move(children), false);
}

Target ExpressionParser::target(bool with_member) {
    const Level level = nested();
    Target made{current().line, -1, {}, {}, {}};
    bool comma = false;
    while (current().kind == Token::Kind::name || current().is_op("(")) {
        Target& part = made.parts.emplace_back(Target{current().line, -1, {}, {}, {}});
        if (skip_op("(")) {
            part = target(with_member);
            expect_op(")");
        } else {
            static constexpr std::string_view constants[] = {"true", "True", "false", "False", "none", "None"};
            part.name = expect_name();
            if (std::find(std::begin(constants), std::end(constants), part.name) != std::end(constants))
                refuse(cat("cannot assign to ", part.name), part.line);
            part.id = name_id(part.name);
            if (with_member && skip_op(".")) part.member = expect_name();
        }
        if (!skip_op(",")) break;
        comma = true;
    }
    if (made.parts.empty()) refuse(cat("expected a name to assign to, got ", describe(current())));
    return comma ? made : Target(made.parts.front());
}

ExpressionPtr ExpressionParser::dict() {
    const int line = current().line;
    std::vector<ExpressionPtr> children;  // key, value, key, value …
    while (!skip_op("}")) {
        if (!children.empty()) expect_op(",");
        if (skip_op("}")) break;
        children.push_back(expression());
        expect_op(":");
        children.push_back(expression());
    }
    return node(line, children, [children](const Frame& frame) -> Value {
        auto made = std::make_shared<Dict>();
        for (std::size_t i = 0; i < children.size(); i += 2) {
            const Value key = children[i]->evaluate(frame);
            made->set(key, children[i + 1]->evaluate(frame));
        }
        return made;
    });
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr value) {
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

ExpressionPtr ExpressionParser::subscript(ExpressionPtr value) {
    const int line = current().line;
    const auto item_of = [&](const ExpressionPtr& key) {
        return node(line, {value, key}, [value, key](const Frame& frame) {
            const Value owner = value->evaluate(frame);
            return item(owner, key->evaluate(frame));
        });
    };
    if (skip_op(".")) {
        if (current().kind == Token::Kind::integer) return item_of(primary());
        return node(line, {value},
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
    return node(line, {value, parts[0], parts[1], parts[2]},
                [value, start = parts[0], stop = parts[1], step = parts[2]](const Frame& frame) {
                    const auto part = [&](const ExpressionPtr& e) { return e ? e->evaluate(frame) : Value(); };
                    const Value owner = value->evaluate(frame), from = part(start), to = part(stop);
                    return slice(owner, from, to, part(step));
                });
}

ExpressionParser::CallArguments ExpressionParser::arguments() {
    const Level level = nested();
    const int line = current().line;
    CallArguments out;
    expect_op("(");
    for (bool first = true; !skip_op(")"); first = false) {
        if (!first) expect_op(",");
        if (skip_op(")")) break;
        if (current().is_op("**")) unsupported("**");
        const bool named = current().kind == Token::Kind::name && ahead().is_op("=");
        if (out.more || (!named && !out.named.empty())) refuse("invalid syntax for function call expression", line);
        if (skip_op("*")) {
            out.more = expression();
        } else if (!named) {
            out.positional.push_back(expression());
        } else {
            std::string name = expect_name();
            next();
            for (const auto& [other, ignored] : out.named) {
                if (other == name) refuse(cat("keyword argument repeated: ", name), line);
            }
            out.named.emplace_back(std::move(name), expression());
        }
    }
    return out;
}

std::vector<ExpressionPtr> ExpressionParser::CallArguments::children(ExpressionPtr first) const {
    std::vector<ExpressionPtr> all = positional;
    for (const auto& [name, value] : named) all.push_back(value);
    all.push_back(std::move(first));
    all.push_back(more);
    return all;
}

void ExpressionParser::CallArguments::evaluate(const Frame& frame, Arguments& out) const {
    for (const ExpressionPtr& value : positional) out.positional.push_back(value->evaluate(frame));
    for (const auto& [name, value] : named) out.named.emplace_back(name, value->evaluate(frame));
    if (!more) return;
    for (Value& value : iterate(more->evaluate(frame))) out.positional.push_back(std::move(value));
}

ExpressionPtr ExpressionParser::call_of(ExpressionPtr callee) {
    const int line = current().line;
    const CallArguments given = arguments();
    const ExpressionPtr made = node(line, given.children(callee), [callee, given](const Frame& frame) {
        const Value* const caller = std::exchange(frame.rendering.caller, nullptr);
        const Value function = callee->evaluate(frame);
        Arguments all;
        given.evaluate(frame, all);
        if (caller) all.named.emplace_back("caller", *caller);
        return call(frame.rendering, function, all);
    });
    return std::make_shared<Expression>(Expression{made->evaluate, made->height, true});
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr value, bool first_inline) {
    while (std::exchange(first_inline, false) || skip_op("|")) {
        const int line = current().line;
        const std::string name = expect_name();
        const CallArguments given = current().is_op("(") ? arguments() : CallArguments();
        value = node(line, given.children(value), [=, filter = find_filter(name)](const Frame& frame) {
            Arguments all;
            all.positional.push_back(value->evaluate(frame));
            given.evaluate(frame, all);
            if (!filter) fail(cat("the filter '", name, "' is not supported in chat templates"));
            return call(frame.rendering, *filter, all);
        });
    }
    return value;
}

ExpressionPtr ExpressionParser::test(ExpressionPtr value) {
    const int line = current().line;
    next();
    const bool wanted = !skip_name("not");
    const std::string name = expect_name();
    const Token& token = current();
    CallArguments given;
    const bool argument = token.kind == Token::Kind::name || token.kind == Token::Kind::string ||
                          token.kind == Token::Kind::integer || token.is_op("[") || token.is_op("{");
    if (token.is_op("(")) {
        given = arguments();
    } else if (argument && !token.is_name("else") && !token.is_name("or") && !token.is_name("and")) {
        if (token.is_name("is")) refuse("tests cannot be chained with is");
        given.positional.push_back(postfix(primary()));
    }
    return node(line, given.children(value), [=, test = find_test(name)](const Frame& frame) -> Value {
        Arguments all;
        all.positional.push_back(value->evaluate(frame));
        given.evaluate(frame, all);
        if (!test) fail(cat("the test '", name, "' is not supported in chat templates"));
        return truthy(call(frame.rendering, *test, all)) == wanted;
    });
}

}  // namespace unsloth::tokenizer::jinja
