#include "tokenizer/jinja/tests.h"

#include <algorithm>

#include "tokenizer/jinja/arguments.h"
#include "tokenizer/jinja/filters.h"
#include "tokenizer/jinja/operators.h"
#include "tokenizer/jinja/print.h"
#include "tokenizer/jinja/text.h"

namespace unsloth::tokenizer::jinja {
namespace {

const Value& only(const Arguments& arguments) {
    static const std::initializer_list<const char*> names = {"value"};
    const Bound checked("test", arguments, names, 1);
    return arguments.positional[0];
}

template <Value::Kind kind>
bool of_kind(Evaluator&, Arguments& a) {
    return only(a).is(kind);
}

template <Operation operation>
bool compared(Evaluator&, Arguments& a) {
    const Bound bound("test", a, {"value", "other"}, 2);
    return compare(operation, bound[0], bound[1]);
}

bool is_defined(Evaluator&, Arguments& a) {
    return !only(a).is_undefined();
}

bool remainder_is(const Value& value, const Value& divisor, int expected) {
    return equal(arithmetic(Operation::modulo, value, divisor), Value(expected));
}

bool is_odd(Evaluator&, Arguments& a) {
    return remainder_is(only(a), 2, 1);
}
bool is_even(Evaluator&, Arguments& a) {
    return remainder_is(only(a), 2, 0);
}
bool is_divisible(Evaluator&, Arguments& a) {
    const Bound bound("divisibleby", a, {"value", "num"}, 2);
    return remainder_is(bound[0], bound[1], 0);
}

bool is_true(Evaluator&, Arguments& a) {
    return only(a).is(Value::Kind::boolean) && a.positional[0].boolean();
}
bool is_false(Evaluator&, Arguments& a) {
    return only(a).is(Value::Kind::boolean) && !a.positional[0].boolean();
}
bool is_number(Evaluator&, Arguments& a) {
    return only(a).is_number();
}

bool is_sequence(Evaluator&, Arguments& a) {  // whatever has a length and takes subscripts
    const Value& value = only(a);
    return length(value) && !value.is_sequence(Sequence::Kind::view) && !value.is(Value::Kind::object);
}

bool is_iterable(Evaluator&, Arguments& a) {
    const Value& value = only(a);
    return value.is_string() || value.is_undefined() || value.is(Value::Kind::sequence) || value.is(Value::Kind::dict);
}

bool is_callable(Evaluator&, Arguments& a) {
    const Value& value = only(a);
    return value.is_undefined() || (value.is(Value::Kind::object) && value.object()->callable());
}

bool is_same(Evaluator&, Arguments& a) {
    const Bound bound("sameas", a, {"value", "other"}, 2);
    return bound[0].same_as(bound[1]);
}

bool is_escaped(Evaluator&, Arguments& a) {
    return only(a).is_markup();
}
bool is_lower(Evaluator&, Arguments& a) {
    return text::has_property(to_string(only(a)), "lower");
}
bool is_upper(Evaluator&, Arguments& a) {
    return text::has_property(to_string(only(a)), "upper");
}

bool is_filter(Evaluator&, Arguments& a) {
    const Value& name = only(a);
    return name.is_string() && find_filter(name.string());
}
bool is_test(Evaluator&, Arguments& a) {
    const Value& name = only(a);
    return name.is_string() && find_test(name.string());
}

constexpr TestEntry tests[] = {
    {"defined", is_defined},
    {"undefined", of_kind<Value::Kind::undefined>},
    {"none", of_kind<Value::Kind::none>},
    {"boolean", of_kind<Value::Kind::boolean>},
    {"true", is_true},
    {"false", is_false},
    {"integer", of_kind<Value::Kind::integer>},
    {"float", of_kind<Value::Kind::floating>},
    {"number", is_number},
    {"string", of_kind<Value::Kind::string>},
    {"mapping", of_kind<Value::Kind::dict>},
    {"sequence", is_sequence},
    {"iterable", is_iterable},
    {"callable", is_callable},
    {"sameas", is_same},
    {"escaped", is_escaped},
    {"lower", is_lower},
    {"upper", is_upper},
    {"odd", is_odd},
    {"even", is_even},
    {"divisibleby", is_divisible},
    {"filter", is_filter},
    {"test", is_test},
    {"in", compared<Operation::in>},
    {"==", compared<Operation::equal>},
    {"eq", compared<Operation::equal>},
    {"equalto", compared<Operation::equal>},
    {"!=", compared<Operation::not_equal>},
    {"ne", compared<Operation::not_equal>},
    {"<", compared<Operation::less>},
    {"lt", compared<Operation::less>},
    {"lessthan", compared<Operation::less>},
    {"<=", compared<Operation::less_equal>},
    {"le", compared<Operation::less_equal>},
    {">", compared<Operation::greater>},
    {"gt", compared<Operation::greater>},
    {"greaterthan", compared<Operation::greater>},
    {">=", compared<Operation::greater_equal>},
    {"ge", compared<Operation::greater_equal>},
};

}  // namespace

const TestEntry* find_test(std::string_view name) {
    const auto found =
        std::find_if(std::begin(tests), std::end(tests), [&](const TestEntry& t) { return t.name == name; });
    return found == std::end(tests) ? nullptr : found;
}

}  // namespace unsloth::tokenizer::jinja
