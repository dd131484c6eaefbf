// Filters that make numbers.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "tokenizer/jinja/arguments.h"
#include "tokenizer/jinja/filters.h"
#include "tokenizer/jinja/operators.h"
#include "tokenizer/jinja/text.h"
#include "unsloth/core/error.h"

namespace unsloth::tokenizer::jinja {
namespace {

void require_defined(const Value& value) {
    if (value.is_undefined()) fail(value.undefined_message());
}

/// Digits with single underscores between them, as Python's literals have them; nullopt for anything else.
std::optional<std::string> without_underscores(std::string_view s) {
    std::string out;
    for (std::size_t i = 0; i < s.size(); ++i) {
        if (s[i] != '_') {
            out += s[i];
            continue;
        }
        const auto alphanumeric = [&](std::size_t k) {
            return k < s.size() && std::isalnum(static_cast<unsigned char>(s[k]));
        };
        if (i == 0 || !alphanumeric(i - 1) || !alphanumeric(i + 1)) return std::nullopt;
    }
    return out;
}

/// Python's int(text, base); nullopt where that is a ValueError.
std::optional<Integer> parse_integer(std::string_view s, int64_t base) {
    if (base != 0 && (base < 2 || base > 36)) return std::nullopt;
    s = text::strip(s, text::Side::both);
    const bool negative = s.starts_with('-');
    if (negative || s.starts_with('+')) s.remove_prefix(1);
    const char letter = s.size() > 2 && s[0] == '0' ? static_cast<char>(s[1] | 0x20) : '\0';
    const int64_t named = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    bool prefixed = false;
    if (named != 0 && (base == named || base == 0)) {
        base = named;
        prefixed = true;
        s.remove_prefix(2);
        if (s.starts_with('_')) s.remove_prefix(1);
    }
    const std::optional<std::string> digits = without_underscores(s);
    if (!digits || digits->empty()) return std::nullopt;
    if (base == 0) {
        base = 10;
        if (!prefixed && (*digits)[0] == '0' && digits->find_first_not_of('0') != std::string::npos)
            return std::nullopt;
    }
    Integer value = 0;
    for (const char c : *digits) {
        const int digit = c >= '0' && c <= '9'                          ? c - '0'
                          : std::isalpha(static_cast<unsigned char>(c)) ? (c | 0x20) - 'a' + 10
                                                                        : 99;
        if (digit >= base) return std::nullopt;
        if (__builtin_mul_overflow(value, static_cast<Integer>(base), &value) ||
            __builtin_add_overflow(value, Integer{digit}, &value))
            fail("integers of more than 127 bits are not supported");
    }
    return negative ? -value : value;
}

/// Python's float(text).
std::optional<double> parse_float(std::string_view s) {
    const std::optional<std::string> plain = without_underscores(text::strip(s, text::Side::both));
    if (!plain || plain->empty()) return std::nullopt;
    std::string_view body = *plain;
    const bool negative = body[0] == '-';
    if (negative || body[0] == '+') body.remove_prefix(1);
    const std::string lower = text::lower(body);
    double value = 0;
    if (lower == "inf" || lower == "infinity") {
        value = HUGE_VAL;
    } else if (lower == "nan") {
        value = std::nan("");
    } else {
        if (body.empty() || !(body[0] == '.' || (body[0] >= '0' && body[0] <= '9'))) return std::nullopt;
        if (lower.starts_with("0x")) return std::nullopt;
        const std::string literal(body);
        char* end = nullptr;
        value = std::strtod(literal.c_str(), &end);
        if (end != literal.c_str() + literal.size()) return std::nullopt;
    }
    return negative ? -value : value;
}

Integer truncated(double value) {
    if (std::isinf(value)) fail("cannot convert float infinity to integer");
    if (std::fabs(value) > 1.7e38) fail("integers of more than 127 bits are not supported");
    return static_cast<Integer>(value);
}

Value to_int(Evaluator&, Arguments& a) {
    const Bound bound("int", a, {"value", "default", "base"}, 1);
    const Value& value = bound[0];
    require_defined(value);
    const Value otherwise = bound.value_or(1, Value(0));
    if (value.is_integral()) return value.integer();
    double number = 0;
    if (value.is_string()) {
        if (const auto parsed = parse_integer(value.string(), bound.integer_or(2, 10))) return *parsed;
        const auto parsed = parse_float(value.string());  // so that "42.5" gives 42
        if (!parsed || std::isinf(*parsed)) return otherwise;
        number = *parsed;
    } else if (value.is(Value::Kind::floating)) {
        number = value.floating();
    } else {
        return otherwise;
    }
    return std::isnan(number) ? otherwise : Value(truncated(number));
}

Value to_float(Evaluator&, Arguments& a) {
    const Bound bound("float", a, {"value", "default"}, 1);
    const Value& value = bound[0];
    require_defined(value);
    const Value otherwise = bound.value_or(1, Value(0.0));
    if (value.is_number()) return value.floating();
    if (!value.is_string()) return otherwise;
    const std::optional<double> parsed = parse_float(value.string());
    return parsed ? Value(*parsed) : otherwise;
}

Value absolute(Evaluator&, Arguments& a) {
    const Bound bound("abs", a, {"x"}, 1, true);
    const Value& value = bound[0];
    require_defined(value);
    if (!value.is_number()) fail(cat("bad operand type for abs(): '", type_name(value), "'"));
    if (value.is(Value::Kind::floating)) return std::fabs(value.floating());
    return value.integer() < 0 ? negate(value) : plus(value);
}

/// Half to even on the exact decimal value.
double rounded(double value, int64_t digits) {
    if (!std::isfinite(value) || digits > 400) return value;
    if (digits < -400) return std::copysign(0.0, value);
    if (digits >= 0) {
        char buffer[1024];
        std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(digits), value);
        return std::strtod(buffer, nullptr);
    }
    const double scale = std::pow(10.0, static_cast<double>(-digits));
    const double result = std::nearbyint(value / scale) * scale;
    if (!std::isfinite(result)) fail("rounded value too large to represent");
    return result;
}

Integer rounded(Integer value, int64_t digits) {
    if (digits >= 0) return value;
    if (digits < -38) return 0;
    Integer scale = 1;
    for (int64_t i = digits; i < 0; ++i) scale *= 10;
    Integer remainder = value % scale;
    Integer whole = value - remainder;
    if (remainder < 0) {
        remainder += scale;
        whole -= scale;
    }
    const bool odd = whole / scale % 2 != 0;
    return remainder * 2 > scale || (remainder * 2 == scale && odd) ? whole + scale : whole;
}

Value round(Evaluator&, Arguments& a) {
    const Bound bound("round", a, {"value", "precision", "method"}, 1);
    const Value& value = bound[0];
    const std::string method = bound.has(2) ? bound.string(2) : "common";
    if (method != "common" && method != "ceil" && method != "floor") fail("method must be common, ceil or floor");
    require_defined(value);
    if (!value.is_number()) fail(cat("type ", type_name(value), " doesn't define __round__ method"));
    const int64_t digits = bound.integer_or(1, 0);
    if (method == "common") {
        return value.is_integral() ? Value(rounded(value.integer(), digits)) : Value(rounded(value.floating(), digits));
    }
    const Value scale = arithmetic(Operation::power, Value(10), bound.value_or(1, Value(0)));
    const Value scaled = arithmetic(Operation::multiply, value, scale);
    if (!scaled.is_integral() && std::isnan(scaled.floating())) fail("cannot convert float NaN to integer");
    const Value whole = scaled.is_integral() ? scaled.integer()
                        : method == "ceil"   ? truncated(std::ceil(scaled.floating()))
                                             : truncated(std::floor(scaled.floating()));
    return arithmetic(Operation::divide, whole, scale);
}

}  // namespace

const FilterEntry number_filters[] = {
    {"int", to_int}, {"float", to_float}, {"abs", absolute}, {"round", round}, {"", nullptr},
};

}  // namespace unsloth::tokenizer::jinja
