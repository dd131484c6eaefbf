// Expressions: the part of the evaluator that gives values.
#include "tokenizer/jinja/evaluation_depth.h"
#include "tokenizer/jinja/evaluator.h"
#include "tokenizer/jinja/filters.h"
#include "tokenizer/jinja/methods.h"
#include "tokenizer/jinja/objects.h"
#include "tokenizer/jinja/operators.h"
#include "tokenizer/jinja/print.h"
#include "tokenizer/jinja/tests.h"
#include "tokenizer/jinja/text.h"
#include "unsloth/core/error.h"

namespace unsloth::tokenizer::jinja {
namespace {

constexpr int64_t by_name = 8;  ///< steps that looking up and calling a filter or test is worth

using Kind = Expression::Kind;

std::string described(const Value& value) {
    return value.is_none() ? "None" : cat(type_name(value), " object");
}

Value no_element(const Value& value, const Value& key) {
    return Value::undefined(
        cat("'", described(value), "' has no ", key.is_string() ? "attribute " : "element ", repr(key)));
}

}  // namespace

Value Evaluator::evaluate(const Expression& e, const ScopePtr& scope) {
    const Depth depth(*this, e.line);
    switch (e.kind) {
        case Kind::constant:
            return e.value;
        case Kind::name:
            return evaluate_name(e, *scope);
        case Kind::member: {
            const Value value = evaluate(*e.children[0], scope);
            line_ = e.line;
            return member(value, e.text);
        }
        case Kind::item: {
            const Value value = evaluate(*e.children[0], scope), key = evaluate(*e.children[1], scope);
            line_ = e.line;
            return item(value, key);
        }
        case Kind::slice:
            return evaluate_slice(e, scope);
        case Kind::call:
            return evaluate_call(e, scope);
        case Kind::filter:
            return evaluate_filter(e, scope);
        case Kind::test:
            return evaluate_test(e, scope);
        case Kind::negate:
            return negate(evaluate(*e.children[0], scope));
        case Kind::plus:
            return plus(evaluate(*e.children[0], scope));
        case Kind::logical_not:
            return !truthy(evaluate(*e.children[0], scope));
        case Kind::binary:
            return evaluate_binary(e, scope);
        case Kind::compare:
            return evaluate_compare(e, scope);
        case Kind::logical_and:
        case Kind::logical_or: {
            Value left = evaluate(*e.children[0], scope);
            return truthy(left) == (e.kind == Kind::logical_or) ? left : evaluate(*e.children[1], scope);
        }
        case Kind::conditional:
            return evaluate_conditional(e, scope);
        case Kind::concatenate:
            return evaluate_concatenation(e, scope);
        case Kind::list:
        case Kind::tuple:
            return evaluate_items(e, scope);
        case Kind::dict:
            return evaluate_dict(e, scope);
    }
    UNSLOTH_CHECK(false, "kind of expression");
}

Value Evaluator::evaluate_name(const Expression& e, const Scope& scope) {
    if (const Value* found = scope.find(e.id)) return *found;
    if (const std::optional<Value> global = find_global(e.text)) return *global;
    return Value::undefined(cat("'", e.text, "' is undefined"));
}

Value Evaluator::member(const Value& value, const std::string& name) {
    if (value.is_undefined()) fail(value.undefined_message());
    if (value.is(Value::Kind::object)) {
        if (name.starts_with("__"))
            return Value::undefined(
                cat("access to attribute '", name, "' of '", type_name(value), "' object is unsafe."));
        const std::optional<Value> found = value.object()->attribute(*this, name);
        return found ? *found : no_element(value, Value(name));
    }
    const MethodEntry* method = nullptr;
    switch (find_method(value, name, method)) {
        case Access::unsafe:
            return Value::undefined(
                cat("access to attribute '", name, "' of '", type_name(value), "' object is unsafe."));
        case Access::safe:
            return bind_method(*method, value);
        case Access::absent:
            break;
    }
    if (value.is(Value::Kind::dict)) {
        if (const Value* found = value.dict().find(std::string_view(name))) return *found;
    }
    return no_element(value, Value(name));
}

Value Evaluator::item(const Value& value, const Value& key) {
    if (const std::optional<Value> found = element(value, key)) return *found;
    if (!key.is_string()) return no_element(value, key);
    // A string that is no key may still name an attribute.
    if (value.is(Value::Kind::object)) return member(value, key.string());
    const MethodEntry* method = nullptr;
    switch (find_method(value, key.string(), method)) {
        case Access::unsafe:
            return Value::undefined(
                cat("access to attribute ", repr(key), " of '", type_name(value), "' object is unsafe."));
        case Access::safe:
            return bind_method(*method, value);
        default:
            return no_element(value, key);
    }
}

Value Evaluator::evaluate_slice(const Expression& e, const ScopePtr& scope) {
    Value parts[4];
    for (std::size_t i = 0; i < 4; ++i) {
        if (e.children[i]) parts[i] = evaluate(*e.children[i], scope);
    }
    line_ = e.line;
    charge(parts[0]);
    return slice(parts[0], parts[1], parts[2], parts[3]);
}

void Evaluator::evaluate_arguments(const Expression& e, const ScopePtr& scope, Arguments& out) {
    for (const ExpressionPtr& argument : e.positional) out.positional.push_back(evaluate(*argument, scope));
    for (const auto& [name, argument] : e.named) out.named.emplace_back(name, evaluate(*argument, scope));
    if (e.more_positional) {
        for (Value& value : iterate(evaluate(*e.more_positional, scope))) out.positional.push_back(std::move(value));
    }
    if (e.more_named) {
        const Value more = evaluate(*e.more_named, scope);
        if (!more.is(Value::Kind::dict)) fail(cat("argument after ** must be a mapping, not ", type_name(more)));
        for (const auto& [key, value] : more.dict().entries()) {
            if (!key.is_string()) fail("keywords must be strings");
            charge(static_cast<int64_t>(out.named.size() / 8));
            for (const auto& [name, ignored] : out.named) {
                if (name == key.string()) fail(cat("got multiple values for keyword argument '", name, "'"));
            }
            out.named.emplace_back(key.string(), value);
        }
    }
    line_ = e.line;
}

Value Evaluator::evaluate_call(const Expression& e, const ScopePtr& scope, const Value* caller) {
    const Value callee = evaluate(*e.children[0], scope);
    Arguments arguments;
    evaluate_arguments(e, scope, arguments);
    if (caller) arguments.named.emplace_back("caller", *caller);
    line_ = e.line;
    Value result = call(callee, arguments);
    charge(result);
    return result;
}

Value Evaluator::call(const Value& callee, Arguments& arguments) {
    if (callee.is_undefined()) fail(callee.undefined_message());
    if (!callee.is(Value::Kind::object)) fail(cat("'", type_name(callee), "' object is not callable"));
    const std::shared_ptr<Object> object = callee.object();
    return object->call(*this, arguments);
}

Value Evaluator::evaluate_filter(const Expression& e, const ScopePtr& scope, const Value* body) {
    Arguments arguments;
    if (e.children[0]) {
        arguments.positional.push_back(e.children[0]->kind == Kind::filter
                                           ? evaluate_filter(*e.children[0], scope, body)
                                           : evaluate(*e.children[0], scope));
    } else {
        arguments.positional.push_back(*body);
    }
    evaluate_arguments(e, scope, arguments);
    line_ = e.line;
    if (!e.filter) fail(unknown_filter(e.text));
    charge(arguments.positional[0]);
    Value result = e.filter->function(*this, arguments);
    charge(result);
    return result;
}

Value Evaluator::apply_filter(const std::string& name, Arguments& arguments) {
    charge(by_name);
    const FilterEntry* filter = find_filter(name);
    if (!filter) fail(unknown_filter(name));
    Value result = filter->function(*this, arguments);
    charge(result);
    return result;
}

Value Evaluator::evaluate_test(const Expression& e, const ScopePtr& scope) {
    Arguments arguments;
    arguments.positional.push_back(evaluate(*e.children[0], scope));
    evaluate_arguments(e, scope, arguments);
    line_ = e.line;
    if (!e.test) fail(cat("no test named '", e.text, "'"));
    return e.test->function(*this, arguments);
}

bool Evaluator::apply_test(const std::string& name, Arguments& arguments) {
    charge(by_name);
    const TestEntry* test = find_test(name);
    if (!test) fail(cat("no test named '", name, "'"));
    return test->function(*this, arguments);
}

Value Evaluator::evaluate_binary(const Expression& e, const ScopePtr& scope) {
    const Value a = evaluate(*e.children[0], scope), b = evaluate(*e.children[1], scope);
    line_ = e.line;
    Value result = arithmetic(e.operation, a, b);
    charge(result);
    return result;
}

Value Evaluator::evaluate_compare(const Expression& e, const ScopePtr& scope) {
    Value left = evaluate(*e.children[0], scope);
    for (std::size_t i = 0; i < e.operations.size(); ++i) {
        Value right = evaluate(*e.children[i + 1], scope);
        line_ = e.line;
        if (e.operations[i] == Operation::in || e.operations[i] == Operation::not_in) charge(right);
        if (!compare(e.operations[i], left, right)) return false;
        left = std::move(right);
    }
    return true;
}

Value Evaluator::evaluate_conditional(const Expression& e, const ScopePtr& scope) {
    if (truthy(evaluate(*e.children[1], scope))) return evaluate(*e.children[0], scope);
    if (e.children[2]) return evaluate(*e.children[2], scope);
    return Value::undefined(
        cat("the inline if-expression in line ", e.line, " evaluated to false and no else section was defined."));
}

Value Evaluator::evaluate_concatenation(const Expression& e, const ScopePtr& scope) {
    std::string joined;
    for (const ExpressionPtr& child : e.children) {
        joined += to_string(evaluate(*child, scope));
        check_string(joined.size());
    }
    Value result(std::move(joined));
    charge(result);
    return result;
}

Value Evaluator::evaluate_items(const Expression& e, const ScopePtr& scope) {
    Items items;
    items.reserve(e.children.size());
    for (const ExpressionPtr& child : e.children) items.push_back(evaluate(*child, scope));
    return e.kind == Kind::list ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

Value Evaluator::evaluate_dict(const Expression& e, const ScopePtr& scope) {
    auto dict = std::make_shared<Dict>();
    for (std::size_t i = 0; i < e.children.size(); i += 2) {
        const Value key = evaluate(*e.children[i], scope);
        Value value = evaluate(*e.children[i + 1], scope);
        line_ = e.line;
        dict->set(key, std::move(value));
    }
    return dict;
}

}  // namespace unsloth::tokenizer::jinja
