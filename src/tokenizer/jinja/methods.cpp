// Methods of strings and dicts, and Python's % of strings.
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

Value dict_get(Rendering&, const Bound& a) {
    const Value* found = a[0].dict().find(a[1]);
    return found ? *found : a.value_or(2, Value());
}

// Parameters without a name are given by position alone.
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
    {"items", [](Rendering&, const Bound& a) -> Value { return dict_items(a[0]); }, {""}, 1},
    {"keys", [](Rendering&, const Bound& a) -> Value { return Value::view(iterate(a[0])); }, {""}, 1},
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

const Native* find_method(const Value& value, std::string_view name) {
    if (value.is_string()) return find_in(string_methods, name);
    return value.is(Value::Kind::dict) ? find_in(dict_methods, name) : nullptr;
}

}  // namespace unsloth::tokenizer::jinja
