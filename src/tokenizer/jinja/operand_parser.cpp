// What operators combine: literals, names, calls, subscripts, filters, tests.
#include <algorithm>

#include "tokenizer/jinja/filters.h"
#include "tokenizer/jinja/parser_base.h"
#include "tokenizer/jinja/tests.h"
#include "unsloth/core/error.h"

namespace unsloth::tokenizer::jinja {

using Kind = Expression::Kind;

ExpressionPtr ExpressionParser::primary(bool with_namespace) {
    const Token token = current();
    switch (token.kind) {
        case Token::Kind::name: {
            next();
            if (token.text == "true" || token.text == "True" || token.text == "false" || token.text == "False" ||
                token.text == "none" || token.text == "None") {
                ExpressionPtr made = node(Kind::constant, token.line);
                if ((token.text[0] | 0x20) != 'n') made->value = (token.text[0] | 0x20) == 't';
                return made;
            }
            const bool member = with_namespace && skip_op(".");
            ExpressionPtr made = node(member ? Kind::member : Kind::name, token.line);
            made->id = name_id(token.text);
            made->text = member ? expect_name() : token.text;
            referenced_.push_back(made->id);
            return made;
        }
        case Token::Kind::string: {
            ExpressionPtr made = node(Kind::constant, token.line);
            std::string joined;
            for (; current().kind == Token::Kind::string; next()) joined += current().text;
            made->value = std::move(joined);
            return made;
        }
        case Token::Kind::integer:
        case Token::Kind::floating: {
            next();
            ExpressionPtr made = node(Kind::constant, token.line);
            made->value = token.number;
            return made;
        }
        case Token::Kind::op:
            if (token.text == "(") {
                next();
                ExpressionPtr made = tuple(true, {}, true);
                expect_op(")");
                return made;
            }
            if (token.text == "[") return list();
            if (token.text == "{") return dict();
            [[fallthrough]];
        default:
            refuse(cat("unexpected ", describe(token)));
    }
}

ExpressionPtr ExpressionParser::tuple(bool with_conditional, std::string_view end, bool parenthesized) {
    const Nesting nesting(*this);
    ExpressionPtr made = node(Kind::tuple, current().line);
    bool comma = false;
    for (;;) {
        if (!made->children.empty()) expect_op(",");
        const bool ends = current().kind == Token::Kind::variable_end || current().kind == Token::Kind::block_end ||
                          current().is_op(")") || (!end.empty() && current().is_name(end));
        if (ends) break;
        adopt(*made, expression(with_conditional));
        if (!current().is_op(",")) break;
        comma = true;
    }
    if (comma) return made;
    if (!made->children.empty()) return std::move(made->children.front());
    if (!parenthesized) refuse(cat("expected an expression, got ", describe(current())));
    return made;
}

ExpressionPtr ExpressionParser::assignment_target(std::string_view end, bool with_namespace) {
    const Nesting nesting(*this);
    const int line = current().line;
    const auto one = [&]() -> ExpressionPtr {
        if (!current().is_op("(")) {
            ExpressionPtr made = primary(with_namespace);
            if (made->kind != Kind::name && made->kind != Kind::member)
                refuse("can only assign to names and members of namespaces", line);
            referenced_.pop_back();
            return made;
        }
        next();
        ExpressionPtr made = assignment_target({}, with_namespace);
        expect_op(")");
        return made;
    };
    ExpressionPtr made = node(Kind::tuple, line);
    bool comma = false;
    for (;;) {
        if (!made->children.empty()) expect_op(",");
        if (current().kind == Token::Kind::block_end || current().is_op(")") ||
            (!end.empty() && current().is_name(end)))
            break;
        adopt(*made, one());
        if (!current().is_op(",")) break;
        comma = true;
    }
    if (comma) return made;
    if (made->children.empty()) refuse(cat("expected a name to assign to, got ", describe(current())));
    return std::move(made->children.front());
}

ExpressionPtr ExpressionParser::list() {
    ExpressionPtr made = node(Kind::list, current().line);
    expect_op("[");
    while (!current().is_op("]")) {
        if (!made->children.empty()) expect_op(",");
        if (current().is_op("]")) break;
        adopt(*made, expression());
    }
    expect_op("]");
    return made;
}

ExpressionPtr ExpressionParser::dict() {
    ExpressionPtr made = node(Kind::dict, current().line);
    expect_op("{");
    while (!current().is_op("}")) {
        if (!made->children.empty()) expect_op(",");
        if (current().is_op("}")) break;
        adopt(*made, expression());
        expect_op(":");
        adopt(*made, expression());
    }
    expect_op("}");
    return made;
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr value) {
    for (;;) {
        if (current().is_op(".") || current().is_op("[")) {
            value = subscript(std::move(value));
        } else if (current().is_op("(")) {
            value = call(std::move(value));
        } else {
            return value;
        }
    }
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr value) {
    const int line = current().line;
    if (skip_op(".")) {
        if (current().kind == Token::Kind::name) {
            ExpressionPtr made = node(Kind::member, line);
            adopt(*made, std::move(value));
            made->text = expect_name();
            return made;
        }
        if (current().kind != Token::Kind::integer) refuse("expected name or number");
        ExpressionPtr made = node(Kind::item, line);
        adopt(*made, std::move(value));
        adopt(*made, primary(false));
        return made;
    }
    expect_op("[");
    ExpressionPtr first;
    if (current().is_op("]")) {
        first = node(Kind::tuple, line);  // Jinja takes a[] for a[()]
    } else if (!current().is_op(":")) {
        first = expression();
    }
    if (first && !current().is_op(":")) {
        ExpressionPtr made = node(Kind::item, line);
        adopt(*made, std::move(value));
        if (current().is_op(",")) {
            ExpressionPtr key = node(Kind::tuple, line);
            adopt(*key, std::move(first));
            while (skip_op(",")) adopt(*key, expression());
            first = std::move(key);
        }
        adopt(*made, std::move(first));
        expect_op("]");
        return made;
    }
    ExpressionPtr made = node(Kind::slice, line);
    adopt(*made, std::move(value));
    adopt(*made, std::move(first));
    for (int part = 0; part < 2; ++part) {
        const bool given = skip_op(":") && !current().is_op(":") && !current().is_op("]");
        adopt(*made, given ? expression() : nullptr);
    }
    expect_op("]");
    return made;
}

void ExpressionParser::arguments(Expression& into) {
    const Nesting nesting(*this);
    const int line = current().line;
    expect_op("(");
    const auto keep = [&](ExpressionPtr child) {
        into.height = std::max(into.height, child->height + 1);
        return child;
    };
    const auto ensure = [&](bool condition) {
        if (!condition) refuse("invalid syntax for function call expression", line);
    };
    for (bool first = true; !current().is_op(")"); first = false) {
        if (!first) {
            expect_op(",");
            if (current().is_op(")")) break;
        }
        if (skip_op("*")) {
            ensure(!into.more_positional && !into.more_named);
            into.more_positional = keep(expression());
        } else if (skip_op("**")) {
            ensure(!into.more_named);
            into.more_named = keep(expression());
        } else if (current().kind == Token::Kind::name && ahead().is_op("=")) {
            ensure(!into.more_named);
            std::string name = expect_name();
            next();
            for (const auto& [other, ignored] : into.named) {
                if (other == name) refuse(cat("keyword argument repeated: ", name), line);
            }
            into.named.emplace_back(std::move(name), keep(expression()));
        } else {
            ensure(!into.more_positional && !into.more_named && into.named.empty());
            into.positional.push_back(keep(expression()));
        }
    }
    expect_op(")");
}

ExpressionPtr ExpressionParser::call(ExpressionPtr value) {
    ExpressionPtr made = node(Kind::call, current().line);
    adopt(*made, std::move(value));
    arguments(*made);
    return made;
}

std::string ExpressionParser::dotted_name() {
    std::string name = expect_name();
    while (skip_op(".")) name += "." + expect_name();
    return name;
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr value, bool first_inline) {
    while (first_inline || current().is_op("|")) {
        if (!first_inline) next();
        first_inline = false;
        ExpressionPtr made = node(Kind::filter, current().line);
        made->text = dotted_name();
        made->filter = find_filter(made->text);
        if (!made->filter) unknown_.push_back({unknown_filter(made->text), made->line});
        adopt(*made, std::move(value));
        if (current().is_op("(")) arguments(*made);
        value = std::move(made);
    }
    return value;
}

ExpressionPtr ExpressionParser::test(ExpressionPtr value) {
    ExpressionPtr made = node(Kind::test, current().line);
    next();
    const bool negated = skip_name("not");
    made->text = dotted_name();
    made->test = find_test(made->text);
    if (!made->test) unknown_.push_back({cat("no test named '", made->text, "'"), made->line});
    adopt(*made, std::move(value));
    const Token& token = current();
    const bool argument = token.kind == Token::Kind::name || token.kind == Token::Kind::string ||
                          token.kind == Token::Kind::integer || token.kind == Token::Kind::floating ||
                          token.is_op("[") || token.is_op("{");
    if (token.is_op("(")) {
        arguments(*made);
    } else if (argument && !token.is_name("else") && !token.is_name("or") && !token.is_name("and")) {
        if (token.is_name("is")) refuse("tests cannot be chained with is");
        made->positional.push_back(postfix(primary(false)));
        made->height = std::max(made->height, made->positional[0]->height + 1);
    }
    if (!negated) return made;
    ExpressionPtr inverted = node(Kind::logical_not, made->line);
    adopt(*inverted, std::move(made));
    return inverted;
}

}  // namespace unsloth::tokenizer::jinja
