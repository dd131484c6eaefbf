// Strings: their methods, their filters and Python's %. And the methods of dicts.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "tokenizer/jinja/functions.h"
#include "tokenizer/jinja/text.h"

namespace unsloth::tokenizer::jinja {
namespace {

using text::Side;

Value list_of(const std::vector<std::string_view>& parts) {
    return Value::list(Items(parts.begin(), parts.end()));
}

template <std::string (*convert)(std::string_view)>
Value converted(const Bound& a) {
    return convert(to_string(a[0]));
}

template <Side side>
Value strip(const Bound& a) {
    const std::string s = to_string(a[0]);
    return a.given(1) ? text::strip(s, a.string(1), side) : text::strip(s, side);
}

Value split(const Bound& a) {
    const int64_t limit = a.integer_or(2, -1);
    if (!a.given(1)) return list_of(text::split_white_space(a.string(0), limit));
    if (a.string(1).empty()) fail("empty separator");
    return list_of(text::split(a.string(0), a.string(1), limit));
}

/// A text, or a tuple of which one fits.
template <bool at_start>
Value starts_or_ends(const Bound& a) {
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
Value find(const Bound& a) {
    const std::string_view s = a.string(0);
    const std::size_t at = reverse ? text::find_last(s, a.string(1)) : text::find(s, a.string(1));
    return at == s.npos ? Value(-1) : Value(text::length(s.substr(0, at)));
}

Value replace(const Bound& a) {
    return text::replace(a.string(0), a.string(1), a.string(2), a.integer_or(3, -1));
}

Value dict_get(const Bound& a) {
    const Value* found = a[0].dict().find(a[1]);
    return found ? *found : a.value_or(2, Value());
}

// Filters, whose value need be no string.

/// Each word begins in upper case; words also begin after hyphens and opening brackets (unlike str.title).
std::string title_filter(std::string_view s) {
    const auto separates = [](char32_t c) {
        constexpr std::u32string_view others = U"-({[<";
        return text::is_space(c) || others.find(c) != others.npos;
    };
    return text::convert_runs(s, separates, [](std::string_view word) {
        const std::size_t first = text::byte_of(word, 1);
        return text::upper(word.substr(0, first)) + text::lower(word.substr(first));
    });
}

Value replace_filter(const Bound& a) {
    const int64_t limit = a.given(3) ? a.integer_or(3, -1) : -1;
    return text::replace(to_string(a[0]), to_string(a[1]), to_string(a[2]), limit);
}

Value string(const Bound& a) {
    return a[0].is_string() ? a[0] : Value(to_string(a[0]));
}

Value escape(const Bound& a) {
    return a[0].is_markup() ? a[0] : Value(text::escape_html(to_string(a[0])), true);
}

Value indent(const Bound& a) {
    const std::string& s = a.string(0);
    const Value width = a.value_or(1, Value(4));
    constexpr int64_t widest = 10'000;
    const int64_t spaces = width.is_string() ? 0 : to_index(width, "an indentation");
    if (spaces > widest) fail("an indentation of more than 10000 characters");
    const std::string indention =
        width.is_string() ? width.string() : std::string(static_cast<std::size_t>(std::max<int64_t>(0, spaces)), ' ');
    const std::string source = s + "\n";
    std::string out = a.boolean_or(2, false) ? indention : "";
    bool first = true;
    for (const std::string_view line : text::split_lines(source)) {
        if (!std::exchange(first, false)) {
            out += '\n';
            if (a.boolean_or(3, false) || !line.empty()) out += indention;
        }
        out += line;
        check_string(out.size());
    }
    return out;
}

Value format(const Bound& a) {
    if (!a.arguments.named.empty()) fail("format() with named values is not supported in chat templates");
    const Items& given = a.arguments.positional;
    return format_percent(to_string(a[0]), Value::tuple(Items(given.begin() + 1, given.end())));
}

/// A number without its fraction, or what a text gives; anything else is the default.
Value to_int(const Bound& a) {
    if (a[0].require_defined().is_integral()) return a[0].integer();
    double number = a[0].is(Value::Kind::floating) ? a[0].floating() : std::nan("");
    if (a[0].is_string()) {
        std::string_view digits = text::strip(a[0].string(), text::Side::both);
        if (digits.find('_') != digits.npos) fail("int of digits with _ is not supported in chat templates");
        if (digits.starts_with('+') && !digits.starts_with("+-")) digits.remove_prefix(1);
        const char* const end = digits.data() + digits.size();
        int64_t whole = 0;
        if (const auto read = std::from_chars(digits.data(), end, whole); read.ec == std::errc() && read.ptr == end)
            return Integer{whole};
        if (std::from_chars(digits.data(), end, number).ptr != end) number = std::nan("");
    }
    if (!std::isfinite(number)) return a.value_or(1, Value(0));
    if (std::fabs(number) > 1e38) fail("integers of more than 127 bits are not supported");
    return static_cast<Integer>(number);
}

constexpr Native string_filters[] = {
    {"capitalize", converted<text::capitalize>, {"s"}, 1},
    {"e", escape, {"s"}, 1},
    {"escape", escape, {"s"}, 1},
    {"format", format, {"value", "*"}, 1},
    {"indent", indent, {"s", "width", "first", "blank"}, 1},
    {"int", to_int, {"value", "default"}, 1},
    {"lower", converted<text::lower>, {"s"}, 1},
    {"replace", replace_filter, {"s", "old", "new", "count"}, 3},
    {"safe", [](const Bound& a) -> Value { return {to_string(a[0]), true}; }, {"value"}, 1},
    {"string", string, {"object"}, 1},
    {"title", converted<title_filter>, {"s"}, 1},
    {"trim", strip<Side::both>, {"value", "chars"}, 1},
    {"upper", converted<text::upper>, {"s"}, 1},
};
constexpr Native string_methods[] = {
    {"capitalize", converted<text::capitalize>, {""}, 1},
    {"endswith", starts_or_ends<false>, {"", ""}, 2},
    {"find", find<false>, {"", ""}, 2},
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
    {"items", [](const Bound& a) -> Value { return dict_items(a[0]); }, {""}, 1},
    {"keys", [](const Bound& a) -> Value { return Value::view(iterate(a[0])); }, {""}, 1},
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
        if (kind != '%' && kind != 's') fail("string formatting other than %s is not supported in chat templates");
        if (kind == 's' && taken == items.size()) fail("not enough arguments for format string");
        out += kind == '%' ? "%" : to_string(items[taken++]);
    }
    // Python lets one value with subscripts stay unused.
    const bool optional = values.is(Value::Kind::dict) || values.is_sequence(Sequence::Kind::list);
    if (taken < items.size() && !optional) fail("not all arguments converted during string formatting");
    return out;
}

Value dict_items(const Value& dict) {
    Items pairs;
    for (const auto& [key, value] : dict.dict().entries()) pairs.push_back(Value::tuple({key, value}));
    return Value::view(std::move(pairs));
}

const Native* find_string_filter(std::string_view name) {
    return find_in(string_filters, name);
}

const Native* find_method(const Value& value, std::string_view name) {
    if (value.is_string()) return find_in(string_methods, name);
    return value.is(Value::Kind::dict) ? find_in(dict_methods, name) : nullptr;
}

}  // namespace unsloth::tokenizer::jinja
