// Statements: {% … %}, and the text between them.
#include "tokenizer/jinja/expressions.h"

namespace unsloth::tokenizer::jinja {
namespace {

/// A statement that runs `run(frame)`; what fails in it is at `at`.
template <class Run>
Statement statement_at(Place at, Run run) {
    return [at, run = std::move(run)](const Frame& frame) {
        return run_at(at, frame, [&run](const Frame& f) {
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
            const Place at = current().place();
            if (current().kind == Kind::data) {
                out.push_back(statement_at(at, [text = current().text](const Frame& f) { f.rendering.write(text); }));
                next();
            } else if (current().kind == Kind::variable_begin) {
                next();
                const Place value_place = current().place();
                out.push_back(statement_at(value_place, [value = tuple(true)](const Frame& frame) {
                    const Value written = value->evaluate(frame);
                    frame.rendering.write(written.is_string() ? written.string() : to_string(written));
                }));
                expect(Kind::variable_end);
            } else if (current().kind == Kind::block_begin) {
                next();
                if (current().kind == Kind::name && std::ranges::find(ends, current().text) != ends.end()) return out;
                out.push_back(statement(ends));
                expect(Kind::block_end);
            } else if (ends.size() != 0) {
                refuse(cat("unexpected end of template: the block that began in line ", first_line, " needs ",
                           listed(ends)));
            } else {
                return out;
            }
        }
    }

    void expect(Kind kind) {
        if (current().kind != kind) {
            refuse(cat("expected ", kind == Kind::block_end ? "end of statement block" : "end of print statement",
                       ", got ", describe(current())));
        }
        next();
    }

    static std::string listed(Ends ends) {
        std::string out;
        for (const std::string_view end : ends) out += cat(out.empty() ? "'" : " or '", end, "'");
        return out;
    }

    /// After a statement's head: its body, with the end tag's name left as the current token.
    Body block(Ends ends) {
        skip_op(":");
        expect(Kind::block_end);
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
        const Place at = current().place();
        const std::string tag = expect_name();
        if (tag == "for") return for_loop(at);
        if (tag == "if") return condition(at);
        if (tag == "set") return assignment(at);
        if (tag == "macro") return macro(at);
        if (tag == "call") return call_block(at);
        if (tag == "filter") return filter_block(at);
        if (tag == "generation") return generation(at);
        if (tag == "break" || tag == "continue") {
            if (loops_ == 0) refuse(cat("'", tag, "' outside loop"), at);
            const Flow flow = tag == "break" ? Flow::break_loop : Flow::continue_loop;
            return statement_at(at, [flow](const Frame&) { return flow; });
        }
        refuse(cat("{% ", tag, " %} is not supported in chat templates",
                   enclosing.size() == 0 ? std::string() : cat("; looking for ", listed(enclosing))),
               at);
    }

    Target target(bool with_member) {
        const Level level = nested();
        Target made{current().place(), -1, {}, {}, {}};
        bool comma = false;
        while (current().kind == Kind::name || current().is_op("(")) {
            Target& part = made.parts.emplace_back(Target{current().place(), -1, {}, {}, {}});
            if (skip_op("(")) {
                part = target(with_member);
                expect_op(")");
            } else {
                static constexpr std::string_view constants[] = {"true", "True", "false", "False", "none", "None"};
                part.name = expect_name();
                if (std::ranges::find(constants, part.name) != std::end(constants))
                    refuse(cat("cannot assign to ", part.name), part.at);
                part.id = name_id(part.name);
                if (with_member && skip_op(".")) part.member = expect_name();
            }
            if (!skip_op(",")) break;
            comma = true;
        }
        if (made.parts.empty()) refuse(cat("expected a name to assign to, got ", describe(current())));
        return comma ? made : Target(made.parts.front());
    }

    Statement for_loop(Place at) {
        auto loop = std::make_shared<Loop>();
        loop->loop_id = name_id("loop");
        loop->target = target(false);
        if (loop->target.name == "loop") refuse("can't assign to special loop variable in for-loop target", at);
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
        return statement_at(at, [loop](const Frame& frame) { return run_loop(*loop, frame); });
    }

    Statement condition(Place at) {
        std::vector<std::pair<ExpressionPtr, Body>> branches;
        Body otherwise;
        for (std::string end = "elif"; end == "elif";) {
            ExpressionPtr test = tuple(false);
            branches.emplace_back(std::move(test), block({"elif", "else", "endif"}));
            end = current().text;
            next();
            if (end == "else") otherwise = closed_block("endif");
        }
        return statement_at(at, [=](const Frame& frame) {
            for (const auto& [test, then] : branches) {
                if (truthy(test->evaluate(frame))) return run(then, frame);
            }
            return run(otherwise, frame);
        });
    }

    Statement assignment(Place at) {
        const Target to = target(true);
        if (skip_op("=")) {
            const ExpressionPtr value = tuple(true);
            return statement_at(at, [=](const Frame& frame) { assign(to, value->evaluate(frame), frame); });
        }
        if (current().is_op("|")) unsupported("a {% set %} block with filters");
        return capturing(at, "endset", [to](const Frame& frame, const Value& text) { assign(to, text, frame); });
    }

    /// A statement that hands what its block writes to `use(frame, text)`, unless the block leaves a loop.
    template <class Use>
    Statement capturing(Place at, std::string_view end, Use use) {
        return statement_at(at, [use, block = closed_block(end)](const Frame& frame) {
            Flow flow = Flow::normal;
            const Value text = frame.rendering.captured([&] { flow = run(block, frame.inner()); });
            if (flow == Flow::normal) use(frame, text);
            return flow;
        });
    }

    std::vector<Macro::Parameter> parameters() {
        std::vector<Macro::Parameter> out;
        expect_op("(");
        while (!skip_op(")")) {
            if (!out.empty()) expect_op(",");
            const Place at = current().place();
            const std::string name = expect_name();
            for (const Macro::Parameter& other : out) {
                if (other.name == name) refuse(cat("duplicate argument '", name, "'"), at);
            }
            const ExpressionPtr otherwise = skip_op("=") ? expression() : nullptr;
            if (!otherwise && !out.empty() && out.back().otherwise)
                refuse("non-default argument follows default argument", at);
            out.push_back({name_id(name), name, otherwise});
        }
        return out;
    }

    Statement macro(Place at) {
        auto made = std::make_shared<Macro>();
        made->name = expect_name();
        made->caller_id = name_id("caller");
        made->parameters = parameters();
        made->body = function_body("endmacro");
        return statement_at(at, [made, id = name_id(made->name)](const Frame& frame) {
            frame.scope->set(id, make_macro(made, frame));
        });
    }

    Statement call_block(Place at) {
        auto made = std::make_shared<Macro>();
        made->name = "caller";
        made->caller_id = name_id("caller");
        if (current().is_op("(")) made->parameters = parameters();
        const ExpressionPtr call = expression();
        if (!call->is_call) refuse("expected call", at);
        made->body = function_body("endcall");
        return statement_at(at, [made, call](const Frame& frame) {
            const Value caller = make_macro(made, frame);
            frame.rendering.caller = &caller;
            frame.rendering.write(to_string(call->evaluate(frame)));
        });
    }

    Statement filter_block(Place at) {
        const ExpressionPtr text = node(at, {}, [](const Frame& frame) { return *frame.rendering.filtered; });
        const ExpressionPtr filtered = filters(text, true);
        return capturing(at, "endfilter", [filtered](const Frame& frame, const Value& body) {
            frame.rendering.filtered = &body;
            frame.rendering.write(to_string(filtered->evaluate(frame)));
        });
    }

    Statement generation(Place at) {
        program_.has_generation = true;
        return statement_at(at, [block = function_body("endgeneration")](const Frame& frame) {
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
