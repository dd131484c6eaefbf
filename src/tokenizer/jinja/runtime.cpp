// Statements: what loops, macros and assignments do.
#include "tokenizer/jinja/runtime.h"

#include <algorithm>

namespace unsloth::tokenizer::jinja {
namespace {

/// `loop`: draws the items of one run one by one, for the loop's filter may depend on what the body did before.
class LoopVariable : public Object {
  public:
    LoopVariable(Items items, std::function<bool(const Value&)> passes)
        : items_(std::move(items)), passes_(std::move(passes)) {}
    const char* type_name() const override { return "LoopContext"; }

    /// Moves on; false at the end.
    bool advance() {
        if (!peek()) return false;
        previous_ = std::exchange(current_, *std::exchange(next_, std::nullopt));
        ++index_;
        return true;
    }
    const Value& current() const { return current_; }
    /// A loop variable that a template saved must not keep alive the frame that contains it.
    void end() {
        passes_ = nullptr;
        items_.clear();
        previous_ = current_ = Value();
        next_.reset();
    }

    std::optional<std::size_t> length() override {
        if (passes_) {  // draws all that is left
            Items rest;
            for (; peek(); next_.reset()) rest.push_back(*next_);
            items_ = std::move(rest);
            position_ = 0;
            passes_ = nullptr;
        }
        return static_cast<std::size_t>(index_ + 1) + (next_ ? 1 : 0) + items_.size() - position_;
    }
    std::optional<Value> attribute(std::string_view name) override {
        if (name == "index") return Value(index_ + 1);
        if (name == "index0") return Value(index_);
        if (name == "first") return Value(index_ == 0);
        if (name == "last") return Value(!peek());
        if (name == "length") return Value(*length());
        if (name == "previtem") return index_ == 0 ? Value::undefined("there is no previous item") : previous_;
        if (name == "nextitem") return peek() ? *next_ : Value::undefined("there is no next item");
        return Value::undefined(cat("loop.", name, " is not supported in chat templates"));
    }

  private:
    bool peek() {
        while (!next_ && position_ < items_.size()) {
            Value item = items_[position_++];
            if (!passes_ || passes_(item)) next_ = std::move(item);
        }
        return next_.has_value();
    }

    Items items_;
    std::size_t position_ = 0;
    std::function<bool(const Value&)> passes_;
    int index_ = -1;  ///< from 0
    Value previous_, current_;
    std::optional<Value> next_;  ///< drawn already
};

class MacroFunction : public Object {
  public:
    MacroFunction(std::shared_ptr<const Macro> macro, const Frame& frame)
        : macro_(std::move(macro)), scope_(frame.scope) {}
    const char* type_name() const override { return "Macro"; }

    Value call(Rendering& rendering, Arguments& arguments) override {
        const std::shared_ptr<Scope> scope = scope_.lock();
        if (!scope) fail(cat("the macro '", macro_->name, "' outlives the block that it was defined in"));
        const Frame frame = Frame{rendering, scope}.inner();
        bind(frame, arguments);
        return rendering.captured([&] { run(macro_->body, frame); });
    }

  private:
    void bind(const Frame& frame, Arguments& arguments) const {
        auto& named = arguments.named;
        const auto take_named = [&](std::string_view key) -> std::optional<Value> {
            const auto found = std::find_if(named.begin(), named.end(), [&](const auto& n) { return n.first == key; });
            if (found == named.end()) return std::nullopt;
            Value value = std::move(found->second);
            named.erase(found);
            return value;
        };
        std::vector<const Macro::Parameter*> missing;
        const auto& parameters = macro_->parameters;
        if (arguments.positional.size() > parameters.size())
            fail(cat("macro '", macro_->name, "' takes not more than ", parameters.size(), " argument(s)"));
        frame.scope->set(macro_->caller_id, take_named("caller").value_or(Value::undefined("No caller defined")));
        for (std::size_t i = 0; i < parameters.size(); ++i) {
            std::optional<Value> value = i < arguments.positional.size() ? std::optional(arguments.positional[i])
                                                                         : take_named(parameters[i].name);
            if (!value) missing.push_back(&parameters[i]);
            if (value) frame.scope->set(parameters[i].id, std::move(*value));
        }
        if (!named.empty()) fail(cat("macro '", macro_->name, "' takes no keyword argument '", named[0].first, "'"));
        for (const Macro::Parameter* parameter : missing) {
            Value value = Value::undefined(cat("parameter '", parameter->name, "' was not provided"));
            if (parameter->otherwise) value = parameter->otherwise->evaluate(frame);
            frame.scope->set(parameter->id, std::move(value));
        }
    }

    std::shared_ptr<const Macro> macro_;
    std::weak_ptr<Scope> scope_;  ///< it holds the macro
};

}  // namespace

void Scope::set(int id, Value value) {
    const auto found = std::find_if(variables.begin(), variables.end(), [&](const auto& v) { return v.first == id; });
    if (found == variables.end()) {
        variables.emplace_back(id, std::move(value));
    } else {
        found->second = std::move(value);
    }
}

const Value* Scope::find(int id) const {
    std::size_t looked_at = 0;
    for (const Scope* scope = this; scope; scope = scope->parent.get()) {
        looked_at += 1 + scope->variables.size();
        if (looked_at > 64) charge(std::exchange(looked_at, 0) / 16);  // more than any real template has
        for (const auto& [other, value] : scope->variables) {
            if (other == id) return &value;
        }
    }
    return nullptr;
}

void Rendering::write(std::string_view text) {
    charge_bytes(text.size());
    check_string(output.size() + text.size());
    output += text;
}

Flow run(const Body& body, const Frame& frame) {
    for (const Statement& statement : body) {
        if (const Flow flow = statement(frame); flow != Flow::normal) return flow;
    }
    return Flow::normal;
}

void assign(const Target& target, const Value& value, const Frame& frame) {
    if (!target.member.empty()) {
        const Value* found = frame.scope->find(target.id);
        const auto space =
            found && found->is(Value::Kind::object) ? std::dynamic_pointer_cast<Namespace>(found->object()) : nullptr;
        if (!space) fail("cannot assign attribute on non-namespace object");
        space->set(target.member, value);
    } else if (target.parts.empty()) {
        frame.scope->set(target.id, value);
    } else {
        const Items items = iterate(value);
        if (items.size() != target.parts.size()) {
            fail(cat(items.size() < target.parts.size() ? "not enough" : "too many", " values to unpack (expected ",
                     target.parts.size(), ", got ", items.size(), ")"));
        }
        for (std::size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i], frame);
    }
}

Flow run_loop(const Loop& loop, const Frame& frame) {
    std::function<bool(const Value&)> passes;
    if (loop.condition) {
        passes = [&loop, frame](const Value& item) {
            charge(1);
            const Frame inner = frame.inner();
            assign(loop.target, item, inner);
            return truthy(loop.condition->evaluate(inner));
        };
    }
    const auto variable = std::make_shared<LoopVariable>(iterate(loop.source->evaluate(frame)), std::move(passes));
    struct AtEnd {
        LoopVariable& variable;
        ~AtEnd() { variable.end(); }
    } const at_end{*variable};
    bool completed = false;  // Jinja's else depends on a body that got to its end
    while (variable->advance()) {
        charge(1);
        const Frame inner = frame.inner();
        inner.scope->set(loop.loop_id, std::static_pointer_cast<Object>(variable));
        assign(loop.target, variable->current(), inner);
        const Flow flow = run(loop.body, inner);
        if (flow == Flow::break_loop) break;
        if (flow == Flow::normal) completed = true;
    }
    return completed ? Flow::normal : run(loop.otherwise, frame.inner());
}

Value make_macro(std::shared_ptr<const Macro> macro, const Frame& frame) {
    return std::shared_ptr<Object>(std::make_shared<MacroFunction>(std::move(macro), frame));
}

}  // namespace unsloth::tokenizer::jinja
