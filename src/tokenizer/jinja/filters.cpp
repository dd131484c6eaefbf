// Filters of lists and dicts: value|name(arguments).
#include <algorithm>

#include "tokenizer/jinja/functions.h"
#include "tokenizer/jinja/text.h"

namespace unsloth::tokenizer::jinja {
namespace {

Value join(const Bound& a) {
    const std::string separator = a.has(1) ? to_string(a[1]) : "";
    std::string out;
    bool first = true;
    for (const Value& item : iterate(a[0])) {
        if (!std::exchange(first, false)) out += separator;
        out += to_string(a.given(2) ? at_path(item, a[2]) : item);
        check_string(out.size());
    }
    return out;
}

Value to_json_filter(const Bound& a) {
    JsonStyle style;
    style.ensure_ascii = a.boolean_or(1, false);
    if (a.given(2)) {
        const int64_t width = std::max<int64_t>(0, to_index(a[2], "an indentation"));
        if (width > 1000) fail("an indentation of more than 1000 characters");
        style.indent = std::string(static_cast<std::size_t>(width), ' ');
        style.item_separator = ",";
    }
    if (a.given(3)) {
        const Items separators = iterate(a[3]);
        if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string())
            fail("tojson: separators must be two strings");
        style.item_separator = separators[0].string();
        style.key_separator = separators[1].string();
    }
    return to_json(a[0], style);
}

Value default_value(const Bound& a) {
    const bool replaces = a[0].is_undefined() || (a.boolean_or(2, false) && !truthy(a[0]));
    return replaces ? a.value_or(1, Value("")) : a[0];
}

Value length_of(const Bound& a) {
    if (const std::optional<std::size_t> n = length(a[0])) return *n;
    fail(cat("object of type '", type_name(a[0]), "' has no len()"));
}

Value first(const Bound& a) {
    Value item;
    if (a[0].is_generator() && take(a[0].sequence(), item)) return item;  // no more than the one
    const Items items = iterate(a[0]);
    return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}

Value last(const Bound& a) {
    if (a[0].is_generator()) fail("'generator' object is not reversible");
    const Items items = iterate(a[0]);
    return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value items(const Bound& a) {
    if (a[0].is_undefined()) return Value::generator({});
    if (!a[0].is(Value::Kind::dict)) fail("Can only get item pairs from a mapping.");
    return Value::generator(dict_items(a[0]).items());
}

/// map(attribute=…, default=…), or map("filter", …) of each.
Value map(const Bound& a) {
    const Arguments& given = a.arguments;
    Items out;
    if (!truthy(a[0])) return Value::generator({});
    if (given.positional.size() == 1) {
        Value path, otherwise;
        for (const auto& [name, value] : given.named) {
            if (name != "attribute" && name != "default") fail(cat("Unexpected keyword argument ", text::repr(name)));
            (name == "default" ? otherwise : path) = value;
        }
        if (path.is_none()) fail("map requires a filter argument");
        for (const Value& item : iterate(a[0])) {
            Value value = at_path(item, path);
            out.push_back(value.is_undefined() && !otherwise.is_none() ? otherwise : std::move(value));
        }
        return Value::generator(std::move(out));
    }
    const std::string name = to_string(given.positional[1]);
    const Native* const filter = find_filter(name);
    if (!filter) fail(cat("the filter '", name, "' is not supported in chat templates"));
    for (const Value& item : iterate(a[0])) out.push_back(call(a.rendering, *filter, a.rest_after(item, 2)));
    return Value::generator(std::move(out));
}

/// select, reject, selectattr, rejectattr: by a test, or by truth without one.
template <bool wanted, bool by_attribute>
Value select(const Bound& a) {
    const Items& given = a.arguments.positional;
    constexpr std::size_t test_at = by_attribute ? 2 : 1;
    Items out;
    if (!truthy(a[0])) return Value::generator({});
    if (given.size() < test_at) fail("Missing parameter for attribute name");
    const Native* const test = given.size() > test_at ? find_test(to_string(given[test_at])) : nullptr;
    if (!test && given.size() > test_at)
        fail(cat("the test '", to_string(given[test_at]), "' is not supported in chat templates"));
    for (const Value& item : iterate(a[0])) {
        charge(1);
        const Value tested = by_attribute ? at_path(item, given[1]) : item;
        const bool passes = truthy(test ? call(a.rendering, *test, a.rest_after(tested, test_at + 1)) : tested);
        if (passes == wanted) out.push_back(item);
    }
    return Value::generator(std::move(out));
}

/// What items are ordered by: argument `attribute` of each where it is given, in lower case unless `case_sensitive`.
Value key_of(const Value& item, const Bound& a, std::size_t attribute, std::size_t case_sensitive) {
    const Value key = a.given(attribute) ? at_path(item, a[attribute]) : item;
    return key.is_string() && !a.boolean_or(case_sensitive, false) ? Value(text::lower(key.string())) : key;
}

/// Stable; reversed, equal items keep their order as well.
template <class Key>
Value sorted(const Items& items, bool reversed, Key key) {
    std::vector<std::pair<Value, Value>> keyed;
    for (const Value& item : items) keyed.emplace_back(key(item), item);
    charge(items.size() * 8);
    std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
        return reversed ? less(b.first, a.first, false, "<") : less(a.first, b.first, false, "<");
    });
    Items out;
    for (auto& [ignored, item] : keyed) out.push_back(std::move(item));
    return Value::list(std::move(out));
}

Value sort(const Bound& a) {
    if (a.given(3) && to_string(a[3]).find(',') != std::string::npos)
        fail("sort by several attributes is not supported in chat templates");
    return sorted(iterate(a[0]), a.boolean_or(1, false), [&](const Value& item) { return key_of(item, a, 3, 2); });
}

Value dict_sort(const Bound& a) {
    if (!a[0].require_defined().is(Value::Kind::dict))
        fail(cat("'", type_name(a[0]), "' object has no attribute 'items'"));
    return sorted(dict_items(a[0]).items(), false, [&](const Value& pair) { return key_of(pair.items()[0], a, 1, 1); });
}

Value unique(const Bound& a) {
    Items out;
    Dict seen;
    for (const Value& item : iterate(a[0])) {
        const Value key = key_of(item, a, 2, 1);
        if (seen.find(key)) continue;
        seen.set(key, Value());
        out.push_back(item);
    }
    return Value::generator(std::move(out));
}

Value min(const Bound& a) {
    Value best = Value::undefined("No aggregated item, sequence was empty."), best_key;
    for (const Value& item : iterate(a[0])) {
        const Value key = key_of(item, a, 2, 1);
        if (!best.is_undefined() && !less(key, best_key, false, "<")) continue;
        best = item;
        best_key = key;
    }
    return best;
}

constexpr Native filters[] = {
    {"default", default_value, {"value", "default_value", "boolean"}, 1},
    {"dictsort", dict_sort, {"value"}, 1},
    {"first", first, {"seq"}, 1},
    {"items", items, {"value"}, 1},
    {"join", join, {"value", "d", "attribute"}, 1},
    {"last", last, {"seq"}, 1},
    {"length", length_of, {"obj"}, 1},
    {"list", [](const Bound& a) -> Value { return Value::list(iterate(a[0])); }, {"value"}, 1},
    {"map", map, {"value", "*"}, 1},
    {"min", min, {"value", "case_sensitive", "attribute"}, 1},
    {"reject", select<false, false>, {"value", "*"}, 1},
    {"rejectattr", select<false, true>, {"value", "*"}, 1},
    {"select", select<true, false>, {"value", "*"}, 1},
    {"selectattr", select<true, true>, {"value", "*"}, 1},
    {"sort", sort, {"value", "reverse", "case_sensitive", "attribute"}, 1},
    {"tojson", to_json_filter, {"x", "ensure_ascii", "indent", "separators"}, 1},
    {"unique", unique, {"value", "case_sensitive", "attribute"}, 1},
};

}  // namespace

Value at_path(const Value& value, const Value& path) {
    charge(1);
    if (!path.is_string()) return item(value, path);
    Value current = value;
    for (const std::string_view part : text::split(path.string(), ".", -1)) {
        const bool number = !part.empty() && part.size() < 19 && part.find_first_not_of("0123456789") == part.npos;
        current = item(current, number ? Value(Integer{std::stoll(std::string(part))}) : Value(part));
    }
    return current;
}

const Native* find_filter(std::string_view name) {
    const Native* const found = find_in(filters, name);
    return found ? found : find_string_filter(name);
}

}  // namespace unsloth::tokenizer::jinja
