#include "tokenizer/jinja/evaluator.h"

#include "tokenizer/jinja/evaluation_depth.h"
#include "tokenizer/jinja/limits.h"
#include "tokenizer/jinja/objects.h"
#include "tokenizer/jinja/operators.h"
#include "tokenizer/jinja/print.h"
#include "unsloth/core/error.h"

namespace unsloth::tokenizer::jinja {

using Kind = Statement::Kind;

Scope::~Scope() {
    Items values;
    for (auto& [id, value] : variables) values.push_back(std::move(value));
    release(std::move(values));
}

void Scope::set(int id, Value value) {
    for (auto& [other, place] : variables) {
        if (other == id) {
            place = std::move(value);
            return;
        }
    }
    variables.emplace_back(id, std::move(value));
}

const Value* Scope::find(int id) const {
    std::size_t looked_at = 0;
    for (const Scope* scope = this; scope; scope = scope->parent.get()) {
        looked_at += 1 + scope->variables.size();
        if (looked_at > 64)
            charge(static_cast<int64_t>(std::exchange(looked_at, 0) / 16));  // more than any real template has
        for (const auto& [other, value] : scope->variables) {
            if (other == id) return &value;
        }
    }
    return nullptr;
}

Evaluator::Depth::Depth(Evaluator& evaluator, int line) : evaluator_(evaluator) {
    evaluator_.charge(int64_t{1});
    if (++evaluator_.depth_ > deepest_evaluation) {
        --evaluator_.depth_;
        throw LimitReached("the template calls itself without end, or nests too deep", line);
    }
}

Evaluator::Evaluator(const Program& program, int64_t most_steps)
    : program_(program),
      steps_left_(most_steps),
      loop_id_(program.id_of("loop")),
      caller_id_(program.id_of("caller")),
      kwargs_id_(program.id_of("kwargs")),
      varargs_id_(program.id_of("varargs")) {}

Evaluator::~Evaluator() {
    for (const std::weak_ptr<Object>& weak : kept_) {
        if (const std::shared_ptr<Object> object = weak.lock()) object->clear();
    }
}

std::string Evaluator::run(const std::vector<std::pair<std::string, Value>>& variables) {
    const Budget budget(steps_left_);
    root_ = std::make_shared<Scope>(nullptr);
    for (const auto& [name, value] : variables) {
        if (const int id = program_.id_of(name); id >= 0) root_->set(id, value);
    }
    try {
        run_body(program_.body, root_);
    } catch (const Failure& failure) {
        throw failure.line > 0 ? failure : Failure(failure.what(), line_);
    }
    return std::move(output_);
}

void Evaluator::keep(const std::shared_ptr<Object>& object) {
    if (kept_.size() >= kept_limit_) {
        std::erase_if(kept_, [](const auto& weak) { return weak.expired(); });
        kept_limit_ = 2 * kept_.size() + 1000;
    }
    kept_.push_back(object);
}

void Evaluator::charge(int64_t steps) {
    jinja::charge(steps);
}

void Evaluator::charge(const Value& value) {
    if (value.is_string()) {
        charge_bytes(value.string().size());
    } else if (value.is(Value::Kind::sequence)) {
        charge(static_cast<int64_t>(value.sequence().items.size() / 4));
    } else if (value.is(Value::Kind::dict)) {
        charge(static_cast<int64_t>(value.dict().size()) * 2);
    }
}

void Evaluator::write(std::string_view text) {
    charge_bytes(text.size());
    if (output_.size() + text.size() > longest_string)
        fail(cat("the text gets longer than ", longest_string, " bytes"));
    output_ += text;
}

template <class Run>
std::string Evaluator::captured(Run run) {
    std::string outer = std::exchange(output_, {});
    ++captures_;
    run();
    --captures_;
    return std::exchange(output_, std::move(outer));
}

Evaluator::Flow Evaluator::run_body(const Body& body, const ScopePtr& scope) {
    for (const auto& statement : body) {
        if (const Flow flow = run_statement(*statement, scope); flow != Flow::normal) return flow;
    }
    return Flow::normal;
}

Evaluator::Flow Evaluator::run_statement(const Statement& s, const ScopePtr& scope) {
    const Depth depth(*this, s.line);
    line_ = s.line;
    switch (s.kind) {
        case Kind::data:
            write(s.text);
            break;
        case Kind::output:
            run_output(s, scope);
            break;
        case Kind::assign:
            assign(*s.target, evaluate(*s.expressions[0], scope), scope);
            break;
        case Kind::assign_block:
            return run_assign_block(s, scope);
        case Kind::for_loop:
            return run_loop(s, scope, evaluate(*s.expressions[0], scope), 0);
        case Kind::condition:
            return run_condition(s, scope);
        case Kind::macro:
            run_macro(s, scope);
            break;
        case Kind::call_block:
            run_call_block(s, scope);
            break;
        case Kind::filter_block:
            return run_filter_block(s, scope);
        case Kind::with:
            return run_with(s, scope);
        case Kind::generation:
            run_generation(s, scope);
            break;
        case Kind::block:
            return run_body(s.body, std::make_shared<Scope>(root_));
        case Kind::break_loop:
            return Flow::break_loop;
        case Kind::continue_loop:
            return Flow::continue_loop;
    }
    return Flow::normal;
}

void Evaluator::run_output(const Statement& s, const ScopePtr& scope) {
    for (const ExpressionPtr& expression : s.expressions) {
        const Value value = evaluate(*expression, scope);
        if (value.is_string()) {
            write(value.string());
        } else {
            write(to_string(value));
        }
    }
}

Evaluator::Flow Evaluator::run_condition(const Statement& s, const ScopePtr& scope) {
    for (const auto& [test, body] : s.branches) {
        if (truthy(evaluate(*test, scope))) return run_body(body, scope);
    }
    return run_body(s.otherwise, scope);
}

Evaluator::Flow Evaluator::run_loop(const Statement& s, const ScopePtr& scope, const Value& items, int depth) {
    line_ = s.line;
    const auto loop = std::make_shared<LoopVariable>(s, scope, LoopItems(*this, s, scope, items), depth);
    // A loop variable that was put away must not hold on to the frame that it lies in.
    struct AtEnd {
        LoopVariable& loop;
        ~AtEnd() { loop.clear(); }
    } const at_end{*loop};
    bool completed = false;  // Jinja's else depends on a body that got to its end
    for (;;) {
        line_ = s.line;
        charge(int64_t{1});
        if (!loop->advance()) break;
        const auto inner = std::make_shared<Scope>(scope);
        if (loop_id_ >= 0) inner->set(loop_id_, std::static_pointer_cast<Object>(loop));
        assign(*s.target, loop->current(), inner);
        const Flow flow = run_body(s.body, inner);
        if (flow == Flow::break_loop) break;
        if (flow == Flow::normal) completed = true;
    }
    return completed ? Flow::normal : run_body(s.otherwise, std::make_shared<Scope>(scope));
}

bool Evaluator::passes(const Statement& loop, const ScopePtr& scope, const Value& item) {
    charge(int64_t{1});
    const auto inner = std::make_shared<Scope>(scope);
    assign(*loop.target, item, inner);
    return truthy(evaluate(*loop.condition, inner));
}

Value Evaluator::loop_again(const Statement& loop, const ScopePtr& scope, const Value& items, int depth) {
    return captured([&] { run_loop(loop, scope, items, depth); });
}

Evaluator::Flow Evaluator::run_assign_block(const Statement& s, const ScopePtr& scope) {
    Flow flow = Flow::normal;
    Value value = captured([&] { flow = run_body(s.body, std::make_shared<Scope>(scope)); });
    if (flow != Flow::normal) return flow;
    if (!s.expressions.empty()) value = evaluate_filter(*s.expressions[0], scope, &value);
    assign(*s.target, value, scope);
    return flow;
}

Evaluator::Flow Evaluator::run_filter_block(const Statement& s, const ScopePtr& scope) {
    Flow flow = Flow::normal;
    const Value value = captured([&] { flow = run_body(s.body, std::make_shared<Scope>(scope)); });
    if (flow == Flow::normal) write(to_string(evaluate_filter(*s.expressions[0], scope, &value)));
    return flow;
}

Evaluator::Flow Evaluator::run_with(const Statement& s, const ScopePtr& scope) {
    const auto inner = std::make_shared<Scope>(scope);
    for (std::size_t i = 0; i < s.expressions.size(); ++i) {
        assign(*s.target->children[i], evaluate(*s.expressions[i], scope), inner);
    }
    return run_body(s.body, inner);
}

void Evaluator::run_macro(const Statement& s, const ScopePtr& scope) {
    const auto macro = std::make_shared<Macro>(s, scope);
    keep(macro);
    scope->set(s.id, std::static_pointer_cast<Object>(macro));
}

void Evaluator::run_call_block(const Statement& s, const ScopePtr& scope) {
    const auto macro = std::make_shared<Macro>(s, scope);
    keep(macro);
    const Value caller = std::static_pointer_cast<Object>(macro);
    write(to_string(evaluate_call(*s.expressions[0], scope, &caller)));
}

void Evaluator::run_generation(const Statement& s, const ScopePtr& scope) {
    const std::size_t begin = output_.size();
    generation_within_value_ = generation_within_value_ || captures_ > 0;
    run_body(s.body, std::make_shared<Scope>(scope));
    if (captures_ > 0) return;
    while (!generations_.empty() && generations_.back().first >= begin) generations_.pop_back();  // nested ones
    generations_.emplace_back(begin, output_.size());
}

Value Evaluator::call_macro(const Statement& s, const ScopePtr& scope, Arguments& arguments) {
    if (!scope) fail("a macro that is no longer there");
    const auto inner = std::make_shared<Scope>(scope);
    const std::string name = s.kind == Kind::call_block ? "caller" : s.text;
    auto& named = arguments.named;
    const auto take_named = [&](std::string_view key) -> std::optional<Value> {
        for (auto it = named.begin(); it != named.end(); ++it) {
            if (it->first != key) continue;
            Value value = std::move(it->second);
            named.erase(it);
            return value;
        }
        return std::nullopt;
    };
    std::vector<const Parameter*> missing;
    for (std::size_t i = 0; i < s.parameters.size(); ++i) {
        const Parameter& parameter = s.parameters[i];
        if (i < arguments.positional.size()) {
            inner->set(parameter.id, arguments.positional[i]);
        } else if (std::optional<Value> value = take_named(parameter.name)) {
            inner->set(parameter.id, std::move(*value));
        } else {
            missing.push_back(&parameter);
        }
    }
    if (s.uses_caller) {
        const std::optional<Value> caller = take_named("caller");
        bool parameter = false;
        for (const Parameter& p : s.parameters) parameter = parameter || p.name == "caller";
        if (!parameter) inner->set(caller_id_, caller.value_or(Value::undefined("No caller defined")));
    }
    if (s.uses_kwargs) {
        auto rest = std::make_shared<Dict>();
        for (auto& [key, value] : named) rest->set(Value(key), std::move(value));
        inner->set(kwargs_id_, rest);
    } else if (!named.empty()) {
        fail(cat("macro '", name, "' takes no keyword argument '", named[0].first, "'"));
    }
    const std::size_t extra = arguments.positional.size() - std::min(arguments.positional.size(), s.parameters.size());
    if (s.uses_varargs) {
        inner->set(varargs_id_, Value::tuple(Items(arguments.positional.end() - static_cast<std::ptrdiff_t>(extra),
                                                   arguments.positional.end())));
    } else if (extra > 0) {
        fail(cat("macro '", name, "' takes not more than ", s.parameters.size(), " argument(s)"));
    }
    for (const Parameter* parameter : missing) {
        inner->set(parameter->id, parameter->otherwise
                                      ? evaluate(*parameter->otherwise, inner)
                                      : Value::undefined(cat("parameter '", parameter->name, "' was not provided")));
    }
    return captured([&] { run_body(s.body, inner); });
}

void Evaluator::assign(const Expression& target, const Value& value, const ScopePtr& scope) {
    line_ = target.line;
    if (target.kind == Expression::Kind::name) {
        scope->set(target.id, value);
    } else if (target.kind == Expression::Kind::member) {
        const Value* found = scope->find(target.id);
        const auto space =
            found && found->is(Value::Kind::object) ? std::dynamic_pointer_cast<Namespace>(found->object()) : nullptr;
        if (!space) fail("cannot assign attribute on non-namespace object");
        space->set(target.text, value);
    } else {
        const Items items = iterate(value);
        const std::size_t expected = target.children.size();
        if (items.size() != expected) {
            fail(cat(items.size() < expected ? "not enough" : "too many", " values to unpack (expected ", expected,
                     ", got ", items.size(), ")"));
        }
        for (std::size_t i = 0; i < expected; ++i) assign(*target.children[i], items[i], scope);
    }
}

}  // namespace unsloth::tokenizer::jinja
