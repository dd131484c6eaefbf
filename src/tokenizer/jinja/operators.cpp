#include "tokenizer/jinja/operators.h"

#include <algorithm>
#include <cmath>

#include "tokenizer/jinja/format.h"
#include "tokenizer/jinja/print.h"
#include "tokenizer/jinja/text.h"
#include "unsloth/core/error.h"

namespace unsloth::tokenizer::jinja {
namespace {

const char* symbol(Operation operation) {
    switch (operation) {
        case Operation::add:
            return "+";
        case Operation::subtract:
            return "-";
        case Operation::multiply:
            return "*";
        case Operation::divide:
            return "/";
        case Operation::floor_divide:
            return "//";
        case Operation::modulo:
            return "%";
        case Operation::power:
            return "** or pow()";
        case Operation::less:
            return "<";
        case Operation::less_equal:
            return "<=";
        case Operation::greater:
            return ">";
        case Operation::greater_equal:
            return ">=";
        default:
            return "in";
    }
}

[[noreturn]] void too_large() {
    fail("integers of more than 127 bits are not supported");
}

Integer floor_divide(Integer a, Integer b) {
    const Integer quotient = a / b;
    return quotient - (a % b != 0 && (a < 0) != (b < 0));
}

Integer raise_to(Integer base, Integer exponent) {
    Integer result = 1;
    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1 && __builtin_mul_overflow(result, base, &result)) too_large();
        if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) too_large();
    }
    return result;
}

double true_divide(Integer a, Integer b) {
    constexpr Integer exact = Integer{1} << 53;
    if (a > -exact && a < exact && b > -exact && b < exact) return static_cast<double>(a) / static_cast<double>(b);
    return static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b));
}

Value integers(Operation operation, Integer a, Integer b) {
    Integer result = 0;
    switch (operation) {
        case Operation::add:
            if (__builtin_add_overflow(a, b, &result)) too_large();
            return result;
        case Operation::subtract:
            if (__builtin_sub_overflow(a, b, &result)) too_large();
            return result;
        case Operation::multiply:
            if (__builtin_mul_overflow(a, b, &result)) too_large();
            return result;
        case Operation::power:
            if (b >= 0) return raise_to(a, b);
            if (a == 0) fail("0.0 cannot be raised to a negative power");
            return std::pow(static_cast<double>(a), static_cast<double>(b));
        default:
            break;
    }
    if (b == 0) {
        fail(operation == Operation::divide ? "division by zero" : "integer division or modulo by zero");
    }
    if (operation == Operation::divide) return true_divide(a, b);
    if (b == -1) return operation == Operation::modulo ? Value(0) : negate(a);  // the one quotient that overflows
    const Integer quotient = floor_divide(a, b);
    return operation == Operation::floor_divide ? quotient : a - quotient * b;
}

/// The remainder has the sign of the divisor, and a = b·quotient + remainder.
std::pair<double, double> divide_floats(double a, double b) {
    double remainder = std::fmod(a, b);
    double quotient = (a - remainder) / b;
    if (remainder != 0) {
        if ((b < 0) != (remainder < 0)) {
            remainder += b;
            quotient -= 1;
        }
    } else {
        remainder = std::copysign(0.0, b);
    }
    if (quotient == 0) return {std::copysign(0.0, a / b), remainder};
    double floor = std::floor(quotient);
    if (quotient - floor > 0.5) floor += 1;
    return {floor, remainder};
}

Value floats(Operation operation, double a, double b) {
    switch (operation) {
        case Operation::add:
            return a + b;
        case Operation::subtract:
            return a - b;
        case Operation::multiply:
            return a * b;
        case Operation::power: {
            if (a == 0 && b < 0) fail("0.0 cannot be raised to a negative power");
            if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b))
                fail("complex numbers are not supported");
            const double result = std::pow(a, b);
            if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) fail("Result too large");
            return result;
        }
        default:
            break;
    }
    if (b == 0) fail(operation == Operation::divide ? "float division by zero" : "float floor division by zero");
    if (operation == Operation::divide) return a / b;
    const auto [quotient, remainder] = divide_floats(a, b);
    return operation == Operation::floor_divide ? quotient : remainder;
}

bool both(const Value& a, const Value& b, Sequence::Kind kind) {
    return a.is_sequence(kind) && b.is_sequence(kind);
}

Value concatenated(const Value& a, const Value& b) {
    if (a.is_string()) {
        check_string(a.string().size() + b.string().size());
        if (a.is_markup() || b.is_markup()) {
            const auto safe = [](const Value& v) { return v.is_markup() ? v.string() : text::escape_html(v.string()); };
            return Value::markup(safe(a) + safe(b));
        }
        std::string joined;
        joined.reserve(a.string().size() + b.string().size());
        joined += a.string();
        joined += b.string();
        return joined;
    }
    Items items = a.sequence().items;
    const Items& more = b.sequence().items;
    check_sequence(items.size() + more.size());
    items.insert(items.end(), more.begin(), more.end());
    return a.is_sequence(Sequence::Kind::list) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

bool repeatable(const Value& value) {
    return value.is_string() || value.is_sequence(Sequence::Kind::list) || value.is_sequence(Sequence::Kind::tuple);
}

Value repeated(const Value& value, const Value& times) {
    const auto count = static_cast<std::size_t>(std::max<int64_t>(0, to_index(times, "a repetition")));
    if (value.is_string()) {
        const std::string& part = value.string();
        if (!part.empty() && count > longest_string / part.size()) check_string(longest_string + 1);
        std::string out;
        out.reserve(part.size() * count);
        for (std::size_t i = 0; i < count && !part.empty(); ++i) out += part;
        return value.is_markup() ? Value::markup(std::move(out)) : Value(std::move(out));
    }
    const Items& part = value.sequence().items;
    if (!part.empty() && count > longest_sequence / part.size()) check_sequence(longest_sequence + 1);
    Items items;
    for (std::size_t i = 0; i < count && !part.empty(); ++i) items.insert(items.end(), part.begin(), part.end());
    return value.is_sequence(Sequence::Kind::list) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

}  // namespace

Value arithmetic(Operation operation, const Value& a, const Value& b) {
    if (operation == Operation::modulo && a.is_string()) return format_percent(a.string(), b);
    for (const Value* value : {&a, &b}) {
        if (value->is_undefined()) fail(value->undefined_message());
    }
    if (a.is_integral() && b.is_integral()) return integers(operation, a.integer(), b.integer());
    if (a.is_number() && b.is_number()) return floats(operation, a.floating(), b.floating());
    if (operation == Operation::add &&
        ((a.is_string() && b.is_string()) || both(a, b, Sequence::Kind::list) || both(a, b, Sequence::Kind::tuple)))
        return concatenated(a, b);
    if (operation == Operation::multiply) {
        if (repeatable(a) && b.is_integral()) return repeated(a, b);
        if (repeatable(b) && a.is_integral()) return repeated(b, a);
    }
    if (operation == Operation::add && a.is_string()) {
        fail(cat("can only concatenate str (not \"", type_name(b), "\") to str"));
    }
    fail(cat("unsupported operand type(s) for ", symbol(operation), ": '", type_name(a), "' and '", type_name(b), "'"));
}

Value negate(const Value& value) {
    if (value.is_undefined()) fail(value.undefined_message());
    if (value.is(Value::Kind::floating)) return -value.floating();
    if (!value.is_integral()) fail(cat("bad operand type for unary -: '", type_name(value), "'"));
    Integer result = 0;
    if (__builtin_sub_overflow(Integer{0}, value.integer(), &result)) too_large();
    return result;
}

Value plus(const Value& value) {
    if (value.is_undefined()) fail(value.undefined_message());
    if (value.is(Value::Kind::floating)) return value;
    if (!value.is_integral()) fail(cat("bad operand type for unary +: '", type_name(value), "'"));
    return value.integer();
}

bool compare(Operation operation, const Value& a, const Value& b) {
    switch (operation) {
        case Operation::equal:
            return equal(a, b);
        case Operation::not_equal:
            return !equal(a, b);
        case Operation::less:
        case Operation::less_equal:
            return less(a, b, operation == Operation::less_equal, symbol(operation));
        case Operation::greater:
        case Operation::greater_equal:
            // The types are named in the order in which they were written.
            if (!(a.is_number() && b.is_number()) && a.kind() != b.kind() && !a.is_undefined() && !b.is_undefined())
                return less(a, b, false, symbol(operation));
            return less(b, a, operation == Operation::greater_equal, symbol(operation));
        case Operation::in:
            return contains(b, a);
        default:
            return !contains(b, a);
    }
}

bool contains(const Value& container, const Value& value) {
    switch (container.kind()) {
        case Value::Kind::undefined:
            return false;
        case Value::Kind::string:
            if (!value.is_string()) fail(cat("'in <string>' requires string as left operand, not ", type_name(value)));
            return text::find(container.string(), value.string()) != std::string_view::npos;
        case Value::Kind::dict:
            return container.dict().find(value) != nullptr;
        case Value::Kind::sequence: {
            Sequence& s = container.sequence();
            if (s.kind == Sequence::Kind::generator) {  // reads up to the match
                for (Value item; take(s, item);) {
                    if (equal(item, value)) return true;
                }
                return false;
            }
            return std::any_of(s.items.begin(), s.items.end(), [&](const Value& item) { return equal(item, value); });
        }
        default:
            fail(cat("argument of type '", type_name(container), "' is not iterable"));
    }
}

Value slice(const Value& value, const Value& start, const Value& stop, const Value& step) {
    if (value.is_undefined()) fail(value.undefined_message());
    const bool sliceable =
        value.is_string() || (value.is(Value::Kind::sequence) && !value.is_sequence(Sequence::Kind::view) &&
                              !value.is_sequence(Sequence::Kind::generator));
    if (value.is(Value::Kind::dict)) fail("unhashable type: 'slice'");
    if (!sliceable) fail(cat("'", type_name(value), "' object is not subscriptable"));
    for (const Value* part : {&start, &stop, &step}) {
        if (!part->is_none() && !part->is_integral()) fail("slice indices must be integers or None");
    }
    const int64_t by = step.is_none() ? 1 : to_index(step, "a slice step");
    if (by == 0) fail("slice step cannot be zero");
    const Items items = value.is_string() ? Items() : value.sequence().items;
    const std::vector<std::string_view> characters =
        value.is_string() ? text::characters(value.string()) : std::vector<std::string_view>();
    const auto size = static_cast<int64_t>(value.is_string() ? characters.size() : items.size());
    const int64_t lowest = by > 0 ? 0 : -1, highest = by > 0 ? size : size - 1;
    const auto bound = [&](const Value& part, int64_t otherwise) {
        if (part.is_none()) return otherwise;
        const int64_t index = to_index(part, "a slice index");
        return std::clamp(index < 0 ? std::max(index, -size - 1) + size : index, lowest, highest);
    };
    const int64_t from = bound(start, by > 0 ? lowest : highest), to = bound(stop, by > 0 ? highest : lowest);
    std::string bytes;
    Items picked;
    const int64_t stride = std::clamp(by, -size - 1, size + 1);
    for (int64_t i = from; by > 0 ? i < to : i > to; i += stride) {
        if (value.is_string()) {
            bytes += characters[static_cast<std::size_t>(i)];
        } else {
            picked.push_back(items[static_cast<std::size_t>(i)]);
        }
    }
    if (value.is_string()) return value.is_markup() ? Value::markup(std::move(bytes)) : Value(std::move(bytes));
    auto result = std::make_shared<Sequence>(value.sequence().kind, std::move(picked));
    const Sequence& source = value.sequence();
    result->start = source.start + from * source.step;
    result->stop = source.start + to * source.step;
    result->step = source.step * by;
    return result;
}

std::optional<Value> element(const Value& value, const Value& key) {
    if (value.is_undefined()) fail(value.undefined_message());
    if (value.is(Value::Kind::dict)) {
        if (key.is(Value::Kind::dict) || key.is_sequence(Sequence::Kind::list)) return std::nullopt;
        const Value* found = value.dict().find(key);
        return found ? std::optional(*found) : std::nullopt;
    }
    const bool indexed =
        value.is_string() || (value.is(Value::Kind::sequence) && !value.is_sequence(Sequence::Kind::view) &&
                              !value.is_sequence(Sequence::Kind::generator));
    if (!indexed || !key.is_integral()) return std::nullopt;
    const auto size = static_cast<Integer>(*length(value));
    const Integer index = key.integer() < 0 ? key.integer() + size : key.integer();
    if (index < 0 || index >= size) return std::nullopt;
    const auto at = static_cast<std::size_t>(index);
    if (!value.is_string()) return value.sequence().items[at];
    const std::string_view bytes = value.string();
    const std::size_t begin = text::byte_of(bytes, at);
    return Value(bytes.substr(begin, text::byte_of(bytes.substr(begin), 1)));
}

}  // namespace unsloth::tokenizer::jinja
