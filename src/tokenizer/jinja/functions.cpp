// Arguments of functions, the tests, and the functions that every template can call.
#include "tokenizer/jinja/functions.h"

#include <algorithm>
#include <ctime>

namespace unsloth::tokenizer::jinja {

Bound::Bound(Rendering& of, const Native& native, const Arguments& all)
    : rendering(of), arguments(all), function_(native.name) {
    const auto known = [&](const char* parameter) { return parameter != nullptr && *parameter != '*'; };
    const auto end = std::find_if_not(native.parameters.begin(), native.parameters.end(), known);
    const bool takes_all = end != native.parameters.end() && *end != nullptr;
    const auto count = static_cast<std::size_t>(end - native.parameters.begin());
    if (arguments.positional.size() > count && !takes_all)
        fail(cat(function_, "() takes at most ", count, " arguments (", arguments.positional.size(), " given)"));
    for (std::size_t i = 0; i < std::min(count, arguments.positional.size()); ++i) values_[i] = arguments.positional[i];
    for (const auto& [name, value] : arguments.named) {
        if (takes_all) break;
        const auto found = std::find(native.parameters.begin(), end, name);
        if (found == end) fail(cat(function_, "() got an unexpected keyword argument '", name, "'"));
        auto& place = values_[static_cast<std::size_t>(found - native.parameters.begin())];
        if (place) fail(cat(function_, "() got multiple values for argument '", name, "'"));
        place = value;
    }
    for (std::size_t i = 0; i < native.required; ++i) {
        if (!values_[i]) fail(cat(function_, "() missing required argument ", i + 1, " ", native.parameters[i]));
    }
}

const std::string& Bound::string(std::size_t i) const {
    const Value& value = values_[i]->require_defined();
    if (!value.is_string()) fail(cat(function_, "() argument must be str, not ", type_name(value)));
    return value.string();
}

Arguments Bound::rest_after(const Value& value, std::size_t first) const {
    Arguments out{{value}, arguments.named};
    for (std::size_t i = first; i < arguments.positional.size(); ++i) out.positional.push_back(arguments.positional[i]);
    return out;
}

Value call(Rendering& rendering, const Native& native, const Arguments& arguments) {
    for (const Value& argument : arguments.positional) charge(argument);
    const Value result = native.function(Bound(rendering, native, arguments));
    charge(result);
    return result;
}

namespace {

class NativeFunction : public Object {
  public:
    NativeFunction(const Native& native, std::optional<Value> self) : native_(native), self_(std::move(self)) {}
    const char* type_name() const override { return "builtin_function_or_method"; }
    Value call(Rendering& rendering, Arguments& arguments) override {
        if (self_) arguments.positional.insert(arguments.positional.begin(), *self_);
        return jinja::call(rendering, native_, arguments);
    }

  private:
    const Native& native_;
    std::optional<Value> self_;
};

// Tests.

template <Value::Kind kind>
Value of_kind(const Bound& a) {
    return a[0].is(kind);
}

template <Operation operation>
Value compared(const Bound& a) {
    return compare(operation, a[0], a[1]);
}

template <bool wanted>
Value is_boolean(const Bound& a) {
    return a[0].is(Value::Kind::boolean) && a[0].boolean() == wanted;
}

Value is_sequence(const Bound& a) {  // whatever has a length and takes subscripts
    return a[0].has_subscripts() || a[0].is(Value::Kind::dict) || a[0].is_undefined();
}

Value is_iterable(const Bound& a) {
    return a[0].is_string() || a[0].is_undefined() || a[0].is(Value::Kind::sequence) || a[0].is(Value::Kind::dict);
}

constexpr Native tests[] = {
    {"defined", [](const Bound& a) -> Value { return !a[0].is_undefined(); }, {"value"}, 1},
    {"undefined", of_kind<Value::Kind::undefined>, {"value"}, 1},
    {"none", of_kind<Value::Kind::none>, {"value"}, 1},
    {"boolean", of_kind<Value::Kind::boolean>, {"value"}, 1},
    {"true", is_boolean<true>, {"value"}, 1},
    {"false", is_boolean<false>, {"value"}, 1},
    {"integer", of_kind<Value::Kind::integer>, {"value"}, 1},
    {"float", of_kind<Value::Kind::floating>, {"value"}, 1},
    {"number", [](const Bound& a) -> Value { return a[0].is_number(); }, {"value"}, 1},
    {"string", of_kind<Value::Kind::string>, {"value"}, 1},
    {"mapping", of_kind<Value::Kind::dict>, {"value"}, 1},
    {"sequence", is_sequence, {"value"}, 1},
    {"iterable", is_iterable, {"value"}, 1},
    {"in", compared<Operation::in>, {"value", "seq"}, 2},
    {"==", compared<Operation::eq>, {"a", "b"}, 2},
    {"eq", compared<Operation::eq>, {"a", "b"}, 2},
    {"equalto", compared<Operation::eq>, {"a", "b"}, 2},
    {"ne", compared<Operation::ne>, {"a", "b"}, 2},
};

// Functions.

Value range(const Bound& a) {
    constexpr Integer longest = 100'000;  // the sandbox's own limit
    const bool one = !a.has(1);
    const Integer start = one ? 0 : a.integer_or(0, 0), stop = a.integer_or(one ? 0 : 1, 0), step = a.integer_or(2, 1);
    if (step == 0) fail("range() arg 3 must not be zero");
    const Integer span = step > 0 ? stop - start : start - stop, stride = step > 0 ? step : -step;
    const Integer count = span > 0 ? (span + stride - 1) / stride : 0;
    if (count > longest) fail("Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).");
    charge(static_cast<std::size_t>(count));
    Items items;
    for (Integer i = 0; i < count; ++i) items.emplace_back(start + i * step);
    return Value::range(std::move(items));
}

/// namespace(mapping, **named)
Value make_namespace(const Bound& a) {
    constexpr std::size_t as_memory = 50;  // it lives until the rendering ends
    charge(as_memory);
    const auto made = std::make_shared<Namespace>();
    const Arguments& given = a.arguments;
    for (const Value& mapping : given.positional) {
        if (given.positional.size() > 1 || !mapping.is(Value::Kind::dict))
            fail("values other than one mapping and named ones are not supported in chat templates");
        for (const auto& [key, value] : mapping.dict().entries()) made->set(to_string(key), value);
    }
    for (const auto& [name, value] : given.named) made->set(name, value);
    a.rendering.namespaces.push_back(made);
    return std::static_pointer_cast<Object>(made);
}

Value strftime_now(const Bound& a) {
    if (a.string(0).size() > 1000) fail("a time format of more than 1000 bytes");
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    localtime_r(&now, &local);
    // An empty result and one that does not fit look the same to strftime: a space in front tells them apart.
    std::string out(16'384, '\0');
    out.resize(std::strftime(out.data(), out.size(), (" " + a.string(0)).c_str(), &local));
    return out.empty() ? Value("") : Value(out.substr(1));
}

constexpr Native functions[] = {
    {"range", range, {"", "", ""}, 1},
    {"namespace", make_namespace, {"*"}, 0},
    {"raise_exception", [](const Bound& a) -> Value { fail(to_string(a[0])); }, {"message"}, 1},
    {"strftime_now", strftime_now, {"format"}, 1},
};

}  // namespace

Value bind_method(const Native& method, const Value& self) {
    return std::shared_ptr<Object>(std::make_shared<NativeFunction>(method, self));
}

const Native* find_test(std::string_view name) {
    return find_in(tests, name);
}

std::optional<Value> find_global(std::string_view name) {
    const Native* found = find_in(functions, name);
    if (!found) return std::nullopt;
    return Value(std::shared_ptr<Object>(std::make_shared<NativeFunction>(*found, std::nullopt)));
}

}  // namespace unsloth::tokenizer::jinja
