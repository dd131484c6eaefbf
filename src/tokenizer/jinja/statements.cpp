// Tokens, names and statements.
#include <algorithm>

#include "tokenizer/jinja/parser.h"
#include "tokenizer/jinja/text.h"

namespace unsloth::tokenizer::jinja {

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
    if (token.kind == Token::Kind::end) return "the end of the template";
    if (token.kind == Token::Kind::data) return "template text";
    if (token.kind == Token::Kind::integer) return "a number";
    return token.kind == Token::Kind::string ? cat("the string ", text::repr(token.text)) : cat("'", token.text, "'");
}

int ExpressionParser::name_id(const std::string& name) {
    const auto [it, added] = ids_.emplace(name, static_cast<int>(program_.names.size()));
    if (added) program_.names.push_back(name);
    return it->second;
}

namespace {

/// A statement that runs `run(frame)`; what fails in it is in `line`.
template <class Run>
Statement statement_at(int line, Run run) {
    return [line, run = std::move(run)](const Frame& frame) {
        return run_at(line, frame, [&run](const Frame& f) {
            if constexpr (std::is_same_v<std::invoke_result_t<Run, const Frame&>, Flow>) {
                return run(f);
            } else {
                run(f);
                return Flow::normal;
            }
        });
    };
}

class Parser : public ExpressionParser {
  public:
    using ExpressionParser::ExpressionParser;

    Program run_parser() {
        program_.body = body({});
        return std::move(program_);
    }

  private:
    using Ends = std::initializer_list<std::string_view>;

    /// Up to a tag named in `ends`, which becomes the current token; without ends up to the end.
    Body body(Ends ends) {
        const Level level = nested();
        Body out;
        const int first_line = current().line;
        for (;;) {
            const int line = current().line;
            if (current().kind == Token::Kind::data) {
                out.push_back(statement_at(line, [text = current().text](const Frame& f) { f.rendering.write(text); }));
                next();
            } else if (current().kind == Token::Kind::variable_begin) {
                next();
                out.push_back(output(current().line, tuple(true)));
                expect(Token::Kind::variable_end);
            } else if (current().kind == Token::Kind::block_begin) {
                next();
                if (is_one_of(ends)) return out;
                out.push_back(statement(ends));
                expect(Token::Kind::block_end);
            } else if (ends.size() != 0) {
                refuse(cat("unexpected end of template: the block that began in line ", first_line, " needs ",
                           listed(ends)));
            } else {
                return out;
            }
        }
    }

    static Statement output(int line, const ExpressionPtr& value) {
        return statement_at(line, [value](const Frame& frame) {
            const Value written = value->evaluate(frame);
            frame.rendering.write(written.is_string() ? written.string() : to_string(written));
        });
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
    /// The body of a macro, caller or generation: a function, so loops around it do not count.
    Body function_body(std::string_view end) {
        const int loops = std::exchange(loops_, 0);
        Body out = closed_block(end);
        loops_ = loops;
        return out;
    }

    Statement statement(Ends enclosing) {
        const int line = current().line;
        const std::string tag = expect_name();
        if (tag == "for") return for_loop(line);
        if (tag == "if") return condition(line);
        if (tag == "set") return assignment(line);
        if (tag == "macro") return macro(line);
        if (tag == "call") return call_block(line);
        if (tag == "filter") return filter_block(line);
        if (tag == "generation") return generation(line);
        if (tag == "break" || tag == "continue") {
            if (loops_ == 0) refuse(cat("'", tag, "' outside loop"), line);
            const Flow flow = tag == "break" ? Flow::break_loop : Flow::continue_loop;
            return statement_at(line, [flow](const Frame&) { return flow; });
        }
        refuse(cat("{% ", tag, " %} is not supported in chat templates",
                   enclosing.size() == 0 ? std::string() : cat("; looking for ", listed(enclosing))),
               line);
    }

    Statement for_loop(int line) {
        auto loop = std::make_shared<Loop>();
        loop->loop_id = name_id("loop");
        loop->target = target(false);
        if (loop->target.name == "loop") refuse("can't assign to special loop variable in for-loop target", line);
        if (!skip_name("in")) refuse(cat("expected 'in', got ", describe(current())));
        loop->source = tuple(false);
        if (skip_name("if")) loop->condition = expression();
        if (current().is_name("recursive")) unsupported("a recursive loop");
        ++loops_;
        loop->body = block({"endfor", "else"});
        --loops_;
        const bool has_else = current().text == "else";
        next();
        if (has_else) loop->otherwise = closed_block("endfor");
        return statement_at(line, [loop](const Frame& frame) { return run_loop(*loop, frame); });
    }

    Statement condition(int line) {
        std::vector<std::pair<ExpressionPtr, Body>> branches;
        Body otherwise;
        for (std::string end = "elif"; end == "elif";) {
            ExpressionPtr test = tuple(false);
            branches.emplace_back(std::move(test), block({"elif", "else", "endif"}));
            end = current().text;
            next();
            if (end == "else") otherwise = closed_block("endif");
        }
        return statement_at(line, [=](const Frame& frame) {
            for (const auto& [test, then] : branches) {
                if (truthy(test->evaluate(frame))) return run(then, frame);
            }
            return run(otherwise, frame);
        });
    }

    Statement assignment(int line) {
        const Target to = target(true);
        if (skip_op("=")) {
            const ExpressionPtr value = tuple(true);
            return statement_at(line, [=](const Frame& frame) { assign(to, value->evaluate(frame), frame); });
        }
        if (current().is_op("|")) unsupported("a {% set %} block with filters");
        return statement_at(line, [to, block = closed_block("endset")](const Frame& frame) {
            Flow flow = Flow::normal;
            const Value text = frame.rendering.captured([&] { flow = run(block, frame.inner()); });
            if (flow == Flow::normal) assign(to, text, frame);
            return flow;
        });
    }

    std::vector<Macro::Parameter> parameters() {
        std::vector<Macro::Parameter> out;
        expect_op("(");
        while (!skip_op(")")) {
            if (!out.empty()) expect_op(",");
            const int line = current().line;
            const std::string name = expect_name();
            for (const Macro::Parameter& other : out) {
                if (other.name == name) refuse(cat("duplicate argument '", name, "'"), line);
            }
            const ExpressionPtr otherwise = skip_op("=") ? expression() : nullptr;
            if (!otherwise && !out.empty() && out.back().otherwise)
                refuse("non-default argument follows default argument", line);
            out.push_back({name_id(name), name, otherwise});
        }
        return out;
    }

    Statement macro(int line) {
        auto made = std::make_shared<Macro>();
        made->name = expect_name();
        made->caller_id = name_id("caller");
        made->parameters = parameters();
        made->body = function_body("endmacro");
        return statement_at(line, [made, id = name_id(made->name)](const Frame& frame) {
            frame.scope->set(id, make_macro(made, frame));
        });
    }

    Statement call_block(int line) {
        auto made = std::make_shared<Macro>();
        made->name = "caller";
        made->caller_id = name_id("caller");
        if (current().is_op("(")) made->parameters = parameters();
        const ExpressionPtr call = expression();
        if (!call->is_call) refuse("expected call", line);
        made->body = function_body("endcall");
        return statement_at(line, [made, call](const Frame& frame) {
            const Value caller = make_macro(made, frame);
            frame.rendering.caller = &caller;
            frame.rendering.write(to_string(call->evaluate(frame)));
        });
    }

    Statement filter_block(int line) {
        const ExpressionPtr text = node(line, {}, [](const Frame& frame) { return *frame.rendering.filtered; });
        const ExpressionPtr filtered = filters(text, true);
        return statement_at(line, [filtered, block = closed_block("endfilter")](const Frame& frame) {
            Flow flow = Flow::normal;
            const Value body = frame.rendering.captured([&] { flow = run(block, frame.inner()); });
            frame.rendering.filtered = &body;
            if (flow == Flow::normal) frame.rendering.write(to_string(filtered->evaluate(frame)));
            return flow;
        });
    }

    Statement generation(int line) {
        program_.has_generation = true;
        return statement_at(line, [block = function_body("endgeneration")](const Frame& frame) {
            Rendering& out = frame.rendering;
            const std::size_t begin = out.output.size();
            run(block, frame.inner());
            if (out.captures > 0) {
                out.generation_within_value = true;
                return;
            }
            while (!out.generations.empty() && out.generations.back().first >= begin) out.generations.pop_back();
            out.generations.emplace_back(begin, out.output.size());
        });
    }

    int loops_ = 0;  ///< around the current place, within its function
};

}  // namespace

Program parse(std::string_view source) {
    return Parser(source).run_parser();
}

}  // namespace unsloth::tokenizer::jinja
