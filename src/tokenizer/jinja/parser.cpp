#include "tokenizer/jinja/parser.h"

#include <algorithm>

#include "tokenizer/jinja/parser_base.h"
#include "unsloth/core/error.h"

namespace unsloth::tokenizer::jinja {
namespace {

using Kind = Statement::Kind;

class Parser : public ExpressionParser {
  public:
    using ExpressionParser::ExpressionParser;

    Program run() {
        program_.body = body({});
        refuse_unknown_since(0);
        return std::move(program_);
    }

  private:
    using Ends = std::initializer_list<std::string_view>;

    std::unique_ptr<Statement> make(Kind kind, int line) const {
        auto made = std::make_unique<Statement>();
        made->kind = kind;
        made->line = line;
        return made;
    }

    /// Up to a tag named in `ends`, which becomes the current token; without ends up to the end.
    Body body(Ends ends) {
        const Nesting nesting(*this);
        Body out;
        const int first_line = current().line;
        for (;;) {
            switch (current().kind) {
                case Token::Kind::data:
                    out.push_back(make(Kind::data, current().line));
                    out.back()->text = current().text;
                    next();
                    break;
                case Token::Kind::variable_begin: {
                    next();
                    auto print = make(Kind::output, current().line);
                    print->expressions.push_back(tuple(true));
                    expect(Token::Kind::variable_end);
                    out.push_back(std::move(print));
                    break;
                }
                case Token::Kind::block_begin: {
                    next();
                    if (is_one_of(ends)) return out;
                    out.push_back(statement(ends));
                    expect(Token::Kind::block_end);
                    break;
                }
                default:
                    if (ends.size() != 0)
                        refuse(cat("unexpected end of template: the block that began in line ", first_line, " needs ",
                                   listed(ends)));
                    return out;
            }
        }
    }

    bool is_one_of(Ends ends) const {
        return current().kind == Token::Kind::name && std::find(ends.begin(), ends.end(), current().text) != ends.end();
    }

    static std::string listed(Ends ends) {
        std::string out;
        for (const std::string_view end : ends) out += cat(out.empty() ? "'" : " or '", end, "'");
        return out;
    }

    /// Behind a statement's head: its body, with the end tag's name left as the current token.
    Body block(Ends ends) {
        skip_op(":");
        expect(Token::Kind::block_end);
        return body(ends);
    }
    Body closed_block(std::string_view end) {
        Body out = block({end});
        next();
        return out;
    }
    /// A body that runs in a frame of its own, where unknown filters are refused (see UnknownName).
    template <class Parse>
    void frame(Parse parse) {
        const std::size_t mark = unknown_.size();
        parse();
        refuse_unknown_since(mark);
    }

    std::unique_ptr<Statement> statement(Ends enclosing) {
        if (current().kind != Token::Kind::name) refuse("tag name expected");
        const std::string tag = current().text;
        const int line = current().line;
        next();
        if (tag == "for") return for_loop(line);
        if (tag == "if") return condition(line);
        if (tag == "set") return assignment(line);
        if (tag == "macro") return macro(line);
        if (tag == "call") return call_block(line);
        if (tag == "filter") return filter_block(line);
        if (tag == "with") return with(line);
        if (tag == "print") return print(line);
        if (tag == "generation") return generation(line);
        if (tag == "block") return named_block(line);
        if (tag == "break" || tag == "continue") {
            if (loops_ == 0) refuse(cat("'", tag, "' outside loop"), line);
            return make(tag == "break" ? Kind::break_loop : Kind::continue_loop, line);
        }
        for (const std::string_view other : {"extends", "include", "import", "from", "autoescape"}) {
            if (tag == other)
                refuse(cat("{% ", tag, " %}: a chat template stands alone; the tag is not supported"), line);
        }
        refuse(cat("unknown tag '", tag, "'",
                   enclosing.size() == 0 ? std::string() : cat("; looking for ", listed(enclosing))),
               line);
    }

    std::unique_ptr<Statement> for_loop(int line) {
        auto made = make(Kind::for_loop, line);
        made->target = assignment_target("in", false);
        if (refers_to_loop(*made->target)) refuse("can't assign to special loop variable in for-loop target", line);
        if (!skip_name("in")) refuse(cat("expected 'in', got ", describe(current())));
        made->expressions.push_back(tuple(false, "recursive"));
        if (skip_name("if")) frame([&] { made->condition = expression(); });
        made->recursive = skip_name("recursive");
        ++loops_;
        frame([&] { made->body = block({"endfor", "else"}); });
        --loops_;
        const bool has_else = current().text == "else";
        next();
        if (has_else) frame([&] { made->otherwise = closed_block("endfor"); });
        return made;
    }

    bool refers_to_loop(const Expression& target) const {
        if (target.kind == Expression::Kind::name) return target.text == "loop";
        return std::any_of(target.children.begin(), target.children.end(),
                           [this](const ExpressionPtr& child) { return refers_to_loop(*child); });
    }

    std::unique_ptr<Statement> condition(int line) {
        auto made = make(Kind::condition, line);
        const std::size_t mark = unknown_.size();
        for (;;) {
            ExpressionPtr test = tuple(false);
            Body then = block({"elif", "else", "endif"});
            made->branches.emplace_back(std::move(test), std::move(then));
            const std::string end = current().text;
            next();
            if (end == "elif") continue;
            if (end == "else") made->otherwise = closed_block("endif");
            break;
        }
        conditional_since(mark);
        return made;
    }

    std::unique_ptr<Statement> assignment(int line) {
        ExpressionPtr target = assignment_target({}, true);
        if (skip_op("=")) {
            auto made = make(Kind::assign, line);
            made->target = std::move(target);
            made->expressions.push_back(tuple(true));
            return made;
        }
        auto made = make(Kind::assign_block, line);
        made->target = std::move(target);
        frame([&] {
            if (ExpressionPtr filter = filters(nullptr)) made->expressions.push_back(std::move(filter));
            made->body = closed_block("endset");
        });
        return made;
    }

    void parameters(Statement& into) {
        expect_op("(");
        while (!current().is_op(")")) {
            if (!into.parameters.empty()) expect_op(",");
            const int line = current().line;
            const std::string name = expect_name();
            for (const Parameter& other : into.parameters) {
                if (other.name == name) refuse(cat("duplicate argument '", name, "'"), line);
            }
            Parameter parameter{name_id(name), name, nullptr};
            if (skip_op("=")) {
                parameter.otherwise = expression();
            } else if (!into.parameters.empty() && into.parameters.back().otherwise) {
                refuse("non-default argument follows default argument", line);
            }
            into.parameters.push_back(std::move(parameter));
        }
        expect_op(")");
    }

    /// The body of a macro or caller: a function, so loops around it do not count.
    void function_body(Statement& into, std::string_view end) {
        const int loops = std::exchange(loops_, 0);
        const std::size_t mark = referenced_.size();
        frame([&] { into.body = closed_block(end); });
        const auto refers = [&](const char* name) {
            const auto from = referenced_.begin() + static_cast<std::ptrdiff_t>(mark);
            return std::find(from, referenced_.end(), name_id(name)) != referenced_.end();
        };
        into.uses_caller = refers("caller");
        into.uses_kwargs = refers("kwargs");
        into.uses_varargs = refers("varargs");
        loops_ = loops;
    }

    std::unique_ptr<Statement> macro(int line) {
        auto made = make(Kind::macro, line);
        made->text = expect_name();
        made->id = name_id(made->text);
        parameters(*made);
        function_body(*made, "endmacro");
        return made;
    }

    std::unique_ptr<Statement> call_block(int line) {
        auto made = make(Kind::call_block, line);
        if (current().is_op("(")) parameters(*made);
        made->expressions.push_back(expression());
        if (made->expressions[0]->kind != Expression::Kind::call) refuse("expected call", line);
        function_body(*made, "endcall");
        return made;
    }

    std::unique_ptr<Statement> generation(int line) {
        auto made = make(Kind::generation, line);
        program_.has_generation = true;
        function_body(*made, "endgeneration");
        return made;
    }

    std::unique_ptr<Statement> filter_block(int line) {
        auto made = make(Kind::filter_block, line);
        frame([&] {
            made->expressions.push_back(filters(nullptr, true));
            made->body = closed_block("endfilter");
        });
        return made;
    }

    std::unique_ptr<Statement> with(int line) {
        auto made = make(Kind::with, line);
        made->target = node(Expression::Kind::tuple, line);
        frame([&] {
            while (current().kind != Token::Kind::block_end) {
                if (!made->expressions.empty()) expect_op(",");
                adopt(*made->target, assignment_target({}, false));
                expect_op("=");
                made->expressions.push_back(expression());
            }
            made->body = closed_block("endwith");
        });
        return made;
    }

    std::unique_ptr<Statement> print(int line) {
        auto made = make(Kind::output, line);
        while (current().kind != Token::Kind::block_end) {
            if (!made->expressions.empty()) expect_op(",");
            made->expressions.push_back(expression());
        }
        return made;
    }

    std::unique_ptr<Statement> named_block(int line) {
        auto made = make(Kind::block, line);
        made->text = expect_name();
        for (const std::string& other : blocks_) {
            if (other == made->text) refuse(cat("block '", other, "' defined twice"), line);
        }
        blocks_.push_back(made->text);
        skip_name("scoped");
        skip_name("required");
        const int loops = std::exchange(loops_, 0);
        frame([&] { made->body = closed_block("endblock"); });
        loops_ = loops;
        skip_name(made->text);
        return made;
    }

    int loops_ = 0;  ///< around the current place, within its function
    std::vector<std::string> blocks_;
};

}  // namespace

Program parse(std::string_view source) {
    return Parser(source).run();
}

}  // namespace unsloth::tokenizer::jinja
