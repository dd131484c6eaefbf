// Methods of strings and dicts, and Python's two ways to fill in strings.
#include <algorithm>

#include "tokenizer/jinja/functions.h"
#include "tokenizer/jinja/text.h"

namespace unsloth::tokenizer::jinja {
namespace {

using text::Side;

Value list_of(const std::vector<std::string_view>& parts) {
    return Value::list(Items(parts.begin(), parts.end()));
}

template <std::string (*convert)(std::string_view)>
Value converted(Rendering&, const Bound& a) {
    return convert(a.string(0));
}

template <Side side>
Value strip(Rendering&, const Bound& a) {
    return a.given(1) ? text::strip(a.string(0), a.string(1), side) : text::strip(a.string(0), side);
}

Value split(Rendering&, const Bound& a) {
    const int64_t limit = a.integer_or(2, -1);
    if (!a.given(1)) return list_of(text::split_white_space(a.string(0), limit));
    if (a.string(1).empty()) fail("empty separator");
    return list_of(text::split(a.string(0), a.string(1), limit));
}

/// A text, or a tuple of which one fits.
template <bool at_start>
Value starts_or_ends(Rendering&, const Bound& a) {
    const auto matches = [&](const Value& part) {
        if (!part.is_string()) {
            fail(cat(at_start ? "startswith" : "endswith", " first arg must be str or a tuple of str, not ",
                     type_name(part)));
        }
        return at_start ? a.string(0).starts_with(part.string()) : a.string(0).ends_with(part.string());
    };
    if (!a[1].is_sequence(Sequence::Kind::tuple)) return matches(a[1]);
    return std::any_of(a[1].items().begin(), a[1].items().end(), matches);
}

template <bool reverse>
Value find(Rendering&, const Bound& a) {
    const std::string_view s = a.string(0);
    const std::size_t at = reverse ? text::find_last(s, a.string(1)) : text::find(s, a.string(1));
    return at == s.npos ? Value(-1) : Value(text::length(s.substr(0, at)));
}

Value replace(Rendering&, const Bound& a) {
    return text::replace(a.string(0), a.string(1), a.string(2), a.integer_or(3, -1));
}

Value join(Rendering&, const Bound& a) {
    std::string out;
    bool first = true;
    for (const Value& item : iterate(a[1])) {
        if (!item.is_string()) fail(cat("sequence item: expected str instance, ", type_name(item), " found"));
        if (!std::exchange(first, false)) out += a.string(0);
        out += item.string();
        check_string(out.size());
    }
    return out;
}

std::string decimal_of(const Value& value) {
    if (!value.is_integral()) fail(cat("an integer is required, not ", type_name(value)));
    return to_decimal(value.integer());
}

/// What stands for {}, {0}, {name}, {:s} or {:d}; `next` counts those without a name.
std::string field(std::string_view field, const Arguments& given, std::size_t& next) {
    const std::size_t colon = std::min(field.find(':'), field.size());
    const std::string_view name = field.substr(0, colon), kind = field.substr(colon);
    const bool number = name.size() < 9 && name.find_first_not_of("0123456789") == name.npos;
    const Value* value = nullptr;
    if (number) {
        const std::size_t place = 1 + (name.empty() ? next++ : std::stoul(std::string(name)));  // behind the pattern
        if (place < given.positional.size()) value = &given.positional[place];
    }
    for (const auto& [key, named] : given.named) {
        if (key == name) value = &named;
    }
    if (!value) fail(cat("{", field, "} is not supported in chat templates, or format() got no such argument"));
    if (kind == ":d") return decimal_of(*value);
    if (kind.empty() || (kind == ":s" && value->is_string())) return to_string(*value);
    fail(cat("the format {", field, "} is not supported in chat templates"));
}

Value format(Rendering&, const Bound& a) {
    const std::string_view pattern = a.string(0);
    std::size_t next = 0;
    std::string out;
    charge_characters(pattern.size());
    for (std::size_t at = 0; at < pattern.size(); ++at) {
        check_string(out.size());
        const char c = pattern[at];
        if (c != '{' && c != '}') {
            out += c;
        } else if (pattern.substr(at + 1, 1) == std::string_view(&c, 1)) {
            out += c;
            ++at;
        } else {
            const std::size_t end = c == '{' ? pattern.find('}', at) : pattern.npos;
            if (end == pattern.npos) fail(cat("Single '", c, "' encountered in format string"));
            out += field(pattern.substr(at + 1, end - at - 1), a.arguments(), next);
            at = end;
        }
    }
    return out;
}

Value dict_items_method(Rendering&, const Bound& a) {
    return dict_items(a[0]);
}

Value dict_keys(Rendering&, const Bound& a) {
    return Value::view(iterate(a[0]), "dict_keys");
}

Value dict_values(Rendering&, const Bound& a) {
    Items values;
    for (const auto& [key, value] : a[0].dict().entries()) values.push_back(value);
    return Value::view(std::move(values), "dict_values");
}

Value dict_get(Rendering&, const Bound& a) {
    const Value* found = a[0].dict().find(a[1]);
    return found ? *found : a.value_or(2, Value());
}

// Parameters without a name are given by position alone.
constexpr Native string_methods[] = {
    {"capitalize", converted<text::capitalize>, {""}, 1},
    {"endswith", starts_or_ends<false>, {"", ""}, 2},
    {"find", find<false>, {"", ""}, 2},
    {"format", format, {"", "*"}, 1},
    {"join", join, {"", ""}, 2},
    {"lower", converted<text::lower>, {""}, 1},
    {"lstrip", strip<Side::left>, {"", ""}, 1},
    {"replace", replace, {"", "", "", ""}, 3},
    {"rfind", find<true>, {"", ""}, 2},
    {"rstrip", strip<Side::right>, {"", ""}, 1},
    {"split", split, {"", "sep", "maxsplit"}, 1},
    {"startswith", starts_or_ends<true>, {"", ""}, 2},
    {"strip", strip<Side::both>, {"", ""}, 1},
    {"title", converted<text::title>, {""}, 1},
    {"upper", converted<text::upper>, {""}, 1},
};
constexpr Native dict_methods[] = {
    {"get", dict_get, {"", "", ""}, 2},
    {"items", dict_items_method, {""}, 1},
    {"keys", dict_keys, {""}, 1},
    {"values", dict_values, {""}, 1},
};

}  // namespace

std::string format_percent(std::string_view pattern, const Value& values) {
    const Items items = values.is_sequence(Sequence::Kind::tuple) ? values.items() : Items{values};
    std::size_t taken = 0;
    std::string out;
    charge_characters(pattern.size());
    for (std::size_t at = 0; at < pattern.size(); ++at) {
        check_string(out.size());
        if (pattern[at] != '%') {
            out += pattern[at];
            continue;
        }
        const char kind = ++at < pattern.size() ? pattern[at] : '\0';
        if (kind != '%' && kind != 's' && kind != 'd')
            fail("string formatting other than %s and %d is not supported in chat templates");
        if (kind != '%' && taken == items.size()) fail("not enough arguments for format string");
        out += kind == '%' ? "%" : kind == 'd' ? decimal_of(items[taken++]) : to_string(items[taken++]);
    }
    // Python lets one value with subscripts stay unused.
    const bool optional = values.is(Value::Kind::dict) || values.is_sequence(Sequence::Kind::list);
    if (taken < items.size() && !optional) fail("not all arguments converted during string formatting");
    return out;
}

Value dict_items(const Value& dict) {
    Items pairs;
    for (const auto& [key, value] : dict.dict().entries()) pairs.push_back(Value::tuple({key, value}));
    return Value::view(std::move(pairs), "dict_items");
}

const Native* find_method(const Value& value, std::string_view name) {
    if (value.is_string()) return find_in(string_methods, name);
    return value.is(Value::Kind::dict) ? find_in(dict_methods, name) : nullptr;
}

}  // namespace unsloth::tokenizer::jinja
