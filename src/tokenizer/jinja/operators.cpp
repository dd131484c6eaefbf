// What + - * % == < in, dots, brackets and calls do with values.
#include <algorithm>

#include "tokenizer/jinja/functions.h"
#include "tokenizer/jinja/text.h"

namespace unsloth::tokenizer::jinja {
namespace {

const char* symbol(Operation operation) {
    static constexpr const char* symbols[] = {"+", "-", "*", "%", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};
    return symbols[static_cast<std::size_t>(operation)];
}

Value integers(Operation operation, Integer a, Integer b) {
    Integer result = 0;
    bool overflows = false;
    if (operation == Operation::add) {
        overflows = __builtin_add_overflow(a, b, &result);
    } else if (operation == Operation::subtract) {
        overflows = __builtin_sub_overflow(a, b, &result);
    } else if (operation == Operation::multiply) {
        overflows = __builtin_mul_overflow(a, b, &result);
    } else {  // the remainder has the sign of the divisor
        if (b == 0) fail("integer modulo by zero");
        result = b == -1 ? 0 : a % b;
        if (result != 0 && (result < 0) != (b < 0)) result += b;
    }
    if (overflows) fail("integers of more than 127 bits are not supported");
    return result;
}

/// A list or a tuple, as `like` is.
Value of_kind(const Value& like, Items items) {
    return like.is_sequence(Sequence::Kind::list) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

bool is_list_or_tuple(const Value& value) {
    return value.is_sequence(Sequence::Kind::list) || value.is_sequence(Sequence::Kind::tuple);
}

Value concatenated(const Value& a, const Value& b) {
    if (a.is_string()) {
        check_string(a.string().size() + b.string().size());
        if (!a.is_markup() && !b.is_markup()) return a.string() + b.string();
        const auto safe = [](const Value& v) { return v.is_markup() ? v.string() : text::escape_html(v.string()); };
        return {safe(a) + safe(b), true};
    }
    check_sequence(a.items().size() + b.items().size());
    Items items = a.items();
    items.insert(items.end(), b.items().begin(), b.items().end());
    return of_kind(a, std::move(items));
}

/// `part`, a text or a list, repeated `times` times; `check` refuses sizes beyond `longest`.
template <class Part>
Part repeated(const Part& part, const Value& times, std::size_t longest, void (*check)(std::size_t)) {
    const auto count = static_cast<std::size_t>(std::max<int64_t>(0, to_index(times, "a repetition")));
    if (!part.empty() && count > longest / part.size()) check(longest + 1);
    Part out;
    for (std::size_t i = 0; i < count && !part.empty(); ++i) out.insert(out.end(), part.begin(), part.end());
    return out;
}
Value repeated(const Value& value, const Value& times) {
    if (!value.is_string()) return of_kind(value, repeated(value.items(), times, longest_sequence, check_sequence));
    return {repeated(value.string(), times, longest_string, check_string), value.is_markup()};
}

bool contains(const Value& container, const Value& value) {
    charge(container);
    if (container.is_string()) {
        if (!value.is_string()) fail(cat("'in <string>' requires string as left operand, not ", type_name(value)));
        return text::find(container.string(), value.string()) != std::string_view::npos;
    }
    if (container.is(Value::Kind::dict)) return container.dict().find(value) != nullptr;
    if (container.is_generator()) {  // reads up to the match
        for (Value item; take(container.sequence(), item);) {
            if (equal(item, value)) return true;
        }
        return false;
    }
    const Items items = iterate(container);
    return std::any_of(items.begin(), items.end(), [&](const Value& item) { return equal(item, value); });
}

Value no_element(const Value& value, const Value& key) {
    const std::string owner = value.is_none() ? "None" : cat(type_name(value), " object");
    const bool may_have = key.is_string() && (value.is_string() || value.is(Value::Kind::sequence));  // in Python
    return Value::undefined(cat("'", owner, "' has no ", key.is_string() ? "attribute " : "element ", repr(key),
                                may_have ? " that is supported in chat templates" : ""));
}

/// A method, or an object's attribute of that name. Python's attributes that templates may not touch or do not use are
/// reported as such: a key of that name must not be taken for them.
std::optional<Value> attribute(const Value& value, const std::string& name) {
    static constexpr std::string_view dict_only[] = {"clear",   "copy",       "fromkeys", "pop",
                                                     "popitem", "setdefault", "update",   "values"};
    const bool hidden = value.is(Value::Kind::dict) &&
                        std::find(std::begin(dict_only), std::end(dict_only), name) != std::end(dict_only);
    if (hidden || name.starts_with("__"))
        return Value::undefined(
            cat("the attribute '", name, "' of '", type_name(value), "' objects is not supported in chat templates"));
    if (value.is(Value::Kind::object)) return value.object()->attribute(name);
    const Native* const method = find_method(value, name);
    return method ? std::optional(bind_method(*method, value)) : std::nullopt;
}

}  // namespace

Value arithmetic(Operation operation, const Value& a, const Value& b) {
    if (operation == Operation::modulo && a.is_string()) return format_percent(a.string(), b);
    a.require_defined(), b.require_defined();
    if (a.is_integral() && b.is_integral()) return integers(operation, a.integer(), b.integer());
    if (a.is_number() && b.is_number()) fail("calculating with fractions is not supported in chat templates");
    const bool alike = (a.is_string() && b.is_string()) ||
                       (is_list_or_tuple(a) && is_list_or_tuple(b) && a.sequence().kind == b.sequence().kind);
    if (operation == Operation::add && alike) return concatenated(a, b);
    if (operation == Operation::multiply) {
        if ((a.is_string() || is_list_or_tuple(a)) && b.is_integral()) return repeated(a, b);
        if ((b.is_string() || is_list_or_tuple(b)) && a.is_integral()) return repeated(b, a);
    }
    if (operation == Operation::add && a.is_string())
        fail(cat("can only concatenate str (not \"", type_name(b), "\") to str"));
    fail(cat("unsupported operand type(s) for ", symbol(operation), ": '", type_name(a), "' and '", type_name(b), "'"));
}

Value negate(const Value& value) {
    if (value.require_defined().is(Value::Kind::floating)) return -value.floating();
    if (!value.is_integral()) fail(cat("bad operand type for unary -: '", type_name(value), "'"));
    return integers(Operation::subtract, 0, value.integer());
}

bool compare(Operation operation, const Value& a, const Value& b) {
    const bool or_equal = operation == Operation::le || operation == Operation::ge;
    if (operation == Operation::eq || operation == Operation::ne) return equal(a, b) == (operation == Operation::eq);
    if (operation == Operation::in || operation == Operation::not_in)
        return contains(b, a) == (operation == Operation::in);
    if (operation == Operation::lt || operation == Operation::le) return less(a, b, or_equal, symbol(operation));
    return less(b, a, or_equal, symbol(operation));
}

Value slice(const Value& value, const Value& start, const Value& stop, const Value& step) {
    charge(value);
    if (!value.require_defined().has_subscripts()) fail(cat("'", type_name(value), "' object takes no slices"));
    for (const Value* part : {&start, &stop, &step}) {
        if (!part->is_none() && !part->is_integral()) fail("slice indices must be integers or None");
    }
    const int64_t by = step.is_none() ? 1 : to_index(step, "a slice step");
    if (by == 0) fail("slice step cannot be zero");
    const std::vector<std::string_view> characters =
        value.is_string() ? text::characters(value.string()) : std::vector<std::string_view>();
    const auto size = static_cast<int64_t>(value.is_string() ? characters.size() : value.items().size());
    const int64_t lowest = by > 0 ? 0 : -1, highest = by > 0 ? size : size - 1;
    const auto bound = [&](const Value& part, int64_t otherwise) {
        if (part.is_none()) return otherwise;
        const int64_t index = to_index(part, "a slice index");
        return std::clamp(index < 0 ? std::max(index, -size - 1) + size : index, lowest, highest);
    };
    const int64_t from = bound(start, by > 0 ? lowest : highest), to = bound(stop, by > 0 ? highest : lowest);
    const int64_t stride = std::clamp(by, -size - 1, size + 1);
    std::string bytes;
    Items picked;
    for (int64_t i = from; by > 0 ? i < to : i > to; i += stride) {
        if (value.is_string()) {
            bytes += characters[static_cast<std::size_t>(i)];
        } else {
            picked.push_back(value.items()[static_cast<std::size_t>(i)]);
        }
    }
    if (value.is_string()) return {std::move(bytes), value.is_markup()};
    return value.is_sequence(Sequence::Kind::range) ? Value::range(std::move(picked))
                                                    : of_kind(value, std::move(picked));
}

Value item(const Value& value, const Value& key) {
    value.require_defined();
    const bool hashable = !key.is(Value::Kind::dict) && !key.is_sequence(Sequence::Kind::list);
    if (value.is(Value::Kind::dict) && hashable) {
        if (const Value* found = value.dict().find(key)) return *found;
    }
    if (value.has_subscripts() && key.is_integral()) {
        const auto size = static_cast<Integer>(*length(value));
        const Integer index = key.integer() < 0 ? key.integer() + size : key.integer();
        if (index < 0 || index >= size) return no_element(value, key);
        const auto at = static_cast<std::size_t>(index);
        if (!value.is_string()) return value.items()[at];
        const std::string_view bytes = std::string_view(value.string()).substr(text::byte_of(value.string(), at));
        return bytes.substr(0, text::byte_of(bytes, 1));
    }
    if (!key.is_string()) return no_element(value, key);
    // A string that is no key may still name an attribute.
    return attribute(value, key.string()).value_or(no_element(value, key));
}

Value member(const Value& value, const std::string& name) {
    if (std::optional<Value> found = attribute(value.require_defined(), name)) return *std::move(found);
    if (value.is(Value::Kind::dict)) {
        if (const Value* found = value.dict().find(std::string_view(name))) return *found;
    }
    return no_element(value, Value(name));
}

Value call(Rendering& rendering, const Value& callee, Arguments& arguments) {
    if (!callee.require_defined().is(Value::Kind::object))
        fail(cat("'", type_name(callee), "' object is not callable"));
    const std::shared_ptr<Object> object = callee.object();
    Value result = object->call(rendering, arguments);
    charge(result);
    return result;
}

}  // namespace unsloth::tokenizer::jinja
