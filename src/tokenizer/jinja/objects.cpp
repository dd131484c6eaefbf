#include "tokenizer/jinja/objects.h"

#include <algorithm>

#include "tokenizer/jinja/arguments.h"
#include "tokenizer/jinja/text.h"
#include "unsloth/core/error.h"

namespace unsloth::tokenizer::jinja {

std::optional<Value> Macro::attribute(Evaluator&, std::string_view name) {
    if (name == "name") return statement_.kind == Statement::Kind::macro ? Value(statement_.text) : Value();
    if (name == "arguments") {
        Items names;
        for (const Parameter& parameter : statement_.parameters) names.emplace_back(parameter.name);
        return Value::tuple(std::move(names));
    }
    return std::nullopt;
}

Namespace::~Namespace() {
    Items values;
    for (auto& [name, value] : attributes_) values.push_back(std::move(value));
    release(std::move(values));
}

std::optional<Value> Namespace::attribute(Evaluator&, std::string_view name) {
    for (const auto& [key, value] : attributes_) {
        if (key == name) return value;
    }
    return std::nullopt;
}

void Namespace::set(std::string_view name, Value value) {
    if (name.starts_with("_")) {
        fail(cat("chat templates cannot store underscore-prefixed attributes on a namespace, but got ",
                 text::repr(name), ": rename the attribute"));
    }
    for (auto& [key, place] : attributes_) {
        if (key == name) {
            place = std::move(value);
            return;
        }
    }
    attributes_.emplace_back(name, std::move(value));
}

LoopItems::LoopItems(Evaluator& evaluator, const Statement& loop, ScopePtr scope, const Value& source)
    : evaluator_(evaluator), loop_(loop), scope_(std::move(scope)), source_(source) {
    generator_ = source.is_sequence(Sequence::Kind::generator);
    sized_ = !generator_ && !loop.condition;
    if (!generator_) items_ = iterate(source);
}

bool LoopItems::next(Value& out) {
    for (;;) {
        if (generator_) {
            if (!take(source_.sequence(), out)) return false;
        } else {
            if (position_ >= items_.size()) return false;
            out = items_[position_++];
        }
        if (!loop_.condition) return true;
        if (evaluator_.passes(loop_, scope_, out)) return true;
    }
}

std::size_t LoopItems::drain(std::vector<Value>& rest) {
    Value item;
    while (next(item)) rest.push_back(item);
    return rest.size();
}

bool LoopVariable::advance() {
    Value item;
    if (!ahead_.empty()) {
        item = std::move(ahead_.back());
        ahead_.pop_back();
    } else if (!items_.next(item)) {
        return false;
    }
    ++index_;
    before_ = std::move(current_);
    current_ = std::move(item);
    return true;
}

bool LoopVariable::peek() {
    if (!ahead_.empty()) return true;
    Value item;
    if (!items_.next(item)) return false;
    ahead_.push_back(std::move(item));
    return true;
}

std::optional<std::size_t> LoopVariable::length() {
    if (length_) return length_;
    if (items_.sized()) {
        length_ = items_.size();
    } else {
        std::vector<Value> rest;
        items_.drain(rest);
        const auto known = static_cast<std::size_t>(index_ + 1) + ahead_.size();
        length_ = known + rest.size();
        std::reverse(rest.begin(), rest.end());
        rest.insert(rest.end(), ahead_.begin(), ahead_.end());
        ahead_ = std::move(rest);
    }
    return length_;
}

void LoopVariable::clear() {
    scope_.reset();
    items_.forget_scope();
    before_ = current_ = Value();
    last_changed_.reset();
    ahead_.clear();
}

Value LoopVariable::call(Evaluator& evaluator, Arguments& arguments) {
    if (!loop_.recursive) fail("The loop must have the 'recursive' marker to be called recursively.");
    const Bound bound("loop", arguments, {"iterable"}, 1);
    return evaluator.loop_again(loop_, scope_, bound[0], depth_ + 1);
}

Value LoopVariable::cycle(const Arguments& arguments) const {
    if (arguments.positional.empty()) fail("no items for cycling given");
    return arguments.positional[static_cast<std::size_t>(index_) % arguments.positional.size()];
}

Value LoopVariable::changed(const Arguments& arguments) {
    Value now = Value::tuple(arguments.positional);
    if (last_changed_ && equal(*last_changed_, now)) return false;
    last_changed_ = std::move(now);
    return true;
}

std::optional<Value> LoopVariable::attribute(Evaluator&, std::string_view name) {
    const auto number = [](int64_t n) { return Value(Integer{n}); };
    if (name == "index") return number(index_ + 1);
    if (name == "index0") return number(index_);
    if (name == "first") return Value(index_ == 0);
    if (name == "last") return Value(!peek());
    if (name == "length") return Value(*length());
    if (name == "revindex") return number(static_cast<int64_t>(*length()) - index_);
    if (name == "revindex0") return number(static_cast<int64_t>(*length()) - index_ - 1);
    if (name == "depth") return Value(depth_ + 1);
    if (name == "depth0") return Value(depth_);
    if (name == "previtem") return index_ == 0 ? Value::undefined("there is no previous item") : before_;
    if (name == "nextitem") return peek() ? ahead_.back() : Value::undefined("there is no next item");
    if (name == "cycle" || name == "changed") {
        const auto self = shared_from_this();
        const bool cycles = name == "cycle";
        return Value(std::shared_ptr<Object>(std::make_shared<NativeFunction>(
            "method",
            [self, cycles](Evaluator&, Arguments& a) { return cycles ? self->cycle(a) : self->changed(a); })));
    }
    return std::nullopt;
}

}  // namespace unsloth::tokenizer::jinja
