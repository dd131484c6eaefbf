// Filters over lists and dicts.
#include <algorithm>
#include <functional>

#include "tokenizer/jinja/arguments.h"
#include "tokenizer/jinja/evaluator.h"
#include "tokenizer/jinja/filters.h"
#include "tokenizer/jinja/methods.h"
#include "tokenizer/jinja/operators.h"
#include "tokenizer/jinja/print.h"
#include "tokenizer/jinja/text.h"
#include "unsloth/core/error.h"

namespace unsloth::tokenizer::jinja {
namespace {

Value without_case(const Value& value, bool case_sensitive) {
    return value.is_string() && !case_sensitive ? Value(text::lower(value.string())) : value;
}

Value default_value(Evaluator&, Arguments& a) {
    const Bound bound("default", a, {"value", "default_value", "boolean"}, 1);
    const bool replaces = bound[0].is_undefined() || (bound.boolean_or(2, false) && !truthy(bound[0]));
    return replaces ? bound.value_or(1, Value("")) : bound[0];
}

Value length_of(Evaluator&, Arguments& a) {
    const Bound bound("length", a, {"obj"}, 1);
    if (const std::optional<std::size_t> n = length(bound[0])) return *n;
    fail(cat("object of type '", type_name(bound[0]), "' has no len()"));
}

Value first(Evaluator&, Arguments& a) {
    const Bound bound("first", a, {"seq"}, 1);
    if (bound[0].is_sequence(Sequence::Kind::generator)) {  // takes no more than the one
        Value item;
        return take(bound[0].sequence(), item) ? item : Value::undefined("No first item, sequence was empty.");
    }
    const Items items = iterate(bound[0]);
    return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}

void require_reversible(const Value& value) {
    const bool reversible = value.is_string() || value.is_undefined() || value.is(Value::Kind::dict) ||
                            (value.is(Value::Kind::sequence) && length(value));
    if (!reversible) fail(cat("'", type_name(value), "' object is not reversible"));
}

Value last(Evaluator&, Arguments& a) {
    const Bound bound("last", a, {"seq"}, 1);
    require_reversible(bound[0]);
    const Items items = iterate(bound[0]);
    return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value reverse(Evaluator&, Arguments& a) {
    const Bound bound("reverse", a, {"value"}, 1);
    Items items = iterate(bound[0]);
    std::reverse(items.begin(), items.end());
    if (bound[0].is_string()) {
        std::string out;
        for (const Value& c : items) out += c.string();
        return out;
    }
    return bound[0].is_sequence(Sequence::Kind::generator) ? Value::list(std::move(items))
                                                           : Value::generator(std::move(items), "reversed");
}

Value list(Evaluator&, Arguments& a) {
    const Bound bound("list", a, {"value"}, 1);
    return Value::list(iterate(bound[0]));
}

Value items(Evaluator&, Arguments& a) {
    const Bound bound("items", a, {"value"}, 1);
    return Value::generator_of([&](Items& out) {
        if (bound[0].is_undefined()) return;
        if (!bound[0].is(Value::Kind::dict)) fail("Can only get item pairs from a mapping.");
        out = dict_items(bound[0]).sequence().items;
    });
}

Value attr(Evaluator& evaluator, Arguments& a) {
    const Bound bound("attr", a, {"obj", "name"}, 2);
    const Value& object = bound[0];
    const std::string& name = bound.string(1);
    // Unlike the dot, this never looks at the keys of a dict.
    const MethodEntry* method = nullptr;
    if (!object.is(Value::Kind::object) && !object.is_undefined() &&
        find_method(object, name, method) == Access::absent)
        return Value::undefined(cat("'", type_name(object), " object' has no attribute ", text::repr(name)));
    return evaluator.member(object, name);
}

Value map(Evaluator& evaluator, Arguments& a) {
    const Value source = a.positional[0];
    return Value::generator_of([&](Items& out) {
        if (!truthy(source)) return;
        const auto attribute =
            std::find_if(a.named.begin(), a.named.end(), [](const auto& n) { return n.first == "attribute"; });
        if (a.positional.size() == 1 && attribute != a.named.end()) {
            const Value path = attribute->second;
            Value otherwise;
            for (const auto& [name, value] : a.named) {
                if (name == "default") {
                    otherwise = value;
                } else if (name != "attribute") {
                    fail(cat("Unexpected keyword argument ", text::repr(name)));
                }
            }
            for (const Value& item : iterate(source)) {
                Value value = attribute_of(evaluator, item, path);
                out.push_back(value.is_undefined() && !otherwise.is_none() ? otherwise : std::move(value));
            }
            return;
        }
        if (a.positional.size() < 2) fail("map requires a filter argument");
        const std::string name = to_string(a.positional[1]);
        for (const Value& item : iterate(source)) {
            Arguments arguments{{item}, a.named};
            arguments.positional.insert(arguments.positional.end(), a.positional.begin() + 2, a.positional.end());
            out.push_back(evaluator.apply_filter(name, arguments));
        }
    });
}

/// select, reject, selectattr, rejectattr: by a test, or by truth without one.
template <bool wanted, bool by_attribute>
Value select(Evaluator& evaluator, Arguments& a) {
    const Value source = a.positional[0];
    return Value::generator_of([&](Items& out) {
        if (!truthy(source)) return;
        constexpr std::size_t test_at = by_attribute ? 2 : 1;
        if (by_attribute && a.positional.size() < 2) fail("Missing parameter for attribute name");
        for (const Value& item : iterate(source)) {
            const Value tested = by_attribute ? attribute_of(evaluator, item, a.positional[1]) : item;
            bool passes = false;
            if (a.positional.size() > test_at) {
                Arguments arguments{{tested}, a.named};
                arguments.positional.insert(arguments.positional.end(),
                                            a.positional.begin() + static_cast<std::ptrdiff_t>(test_at) + 1,
                                            a.positional.end());
                passes = evaluator.apply_test(to_string(a.positional[test_at]), arguments);
            } else {
                evaluator.charge(int64_t{1});
                passes = truthy(tested);
            }
            if (passes == wanted) out.push_back(item);
        }
    });
}

/// Stable, with the keys made once; reversed, equal items keep their order as well.
Items sorted(Evaluator& evaluator, const Items& items, bool reversed,
             const std::function<Value(const Value&)>& key_of) {
    std::vector<std::pair<Value, Value>> keyed;
    for (const Value& item : items) keyed.emplace_back(key_of(item), item);
    evaluator.charge(static_cast<int64_t>(items.size()) * 8);
    std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
        return reversed ? less(b.first, a.first, false, "<") : less(a.first, b.first, false, "<");
    });
    Items out;
    for (auto& [key, item] : keyed) out.push_back(std::move(item));
    return out;
}

Value sort(Evaluator& evaluator, Arguments& a) {
    const Bound bound("sort", a, {"value", "reverse", "case_sensitive", "attribute"}, 1);
    const bool case_sensitive = bound.boolean_or(2, false);
    Items paths = {Value()};
    if (bound.given(3)) {
        paths = {bound[3]};
        if (bound[3].is_string()) {
            paths.clear();
            for (const std::string_view path : text::split(bound[3].string(), ",", -1, false)) paths.emplace_back(path);
        }
    }
    return Value::list(sorted(evaluator, iterate(bound[0]), bound.boolean_or(1, false), [&](const Value& item) {
        Items keys;
        for (const Value& path : paths)
            keys.push_back(without_case(path.is_none() ? item : attribute_of(evaluator, item, path), case_sensitive));
        return Value::list(std::move(keys));
    }));
}

Value dict_sort(Evaluator& evaluator, Arguments& a) {
    const Bound bound("dictsort", a, {"value", "case_sensitive", "by", "reverse"}, 1);
    const std::string by = bound.has(2) ? to_string(bound[2]) : "key";
    if (by != "key" && by != "value") fail("You can only sort by either \"key\" or \"value\"");
    if (bound[0].is_undefined()) fail(bound[0].undefined_message());
    if (!bound[0].is(Value::Kind::dict)) fail(cat("'", type_name(bound[0]), "' object has no attribute 'items'"));
    const bool case_sensitive = bound.boolean_or(1, false);
    return Value::list(sorted(
        evaluator, dict_items(bound[0]).sequence().items, bound.boolean_or(3, false),
        [&](const Value& pair) { return without_case(pair.sequence().items[by == "key" ? 0 : 1], case_sensitive); }));
}

Value unique(Evaluator& evaluator, Arguments& a) {
    const Bound bound("unique", a, {"value", "case_sensitive", "attribute"}, 1);
    return Value::generator_of([&](Items& out) {
        Dict seen;
        for (const Value& item : iterate(bound[0])) {
            const Value value = bound.given(2) ? attribute_of(evaluator, item, bound[2]) : item;
            const Value key = without_case(value, bound.boolean_or(1, false));
            if (seen.find(key)) continue;
            seen.set(key, Value());
            out.push_back(item);
        }
    });
}

template <bool largest>
Value extreme(Evaluator& evaluator, Arguments& a) {
    const Bound bound(largest ? "max" : "min", a, {"value", "case_sensitive", "attribute"}, 1);
    const Items items = iterate(bound[0]);
    if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
    const auto key_of = [&](const Value& item) {
        return without_case(bound.given(2) ? attribute_of(evaluator, item, bound[2]) : item,
                            bound.boolean_or(1, false));
    };
    std::size_t best = 0;
    Value best_key = key_of(items[0]);
    for (std::size_t i = 1; i < items.size(); ++i) {
        Value key = key_of(items[i]);
        if (largest ? !compare(Operation::greater, key, best_key) : !less(key, best_key, false, "<")) continue;
        best = i;
        best_key = std::move(key);
    }
    return items[best];
}

Value sum(Evaluator& evaluator, Arguments& a) {
    const Bound bound("sum", a, {"iterable", "attribute", "start"}, 1);
    Value total = bound.value_or(2, Value(0));
    if (total.is_string()) fail("sum() can't sum strings [use ''.join(seq) instead]");
    for (const Value& item : iterate(bound[0])) {
        total = arithmetic(Operation::add, total, bound.given(1) ? attribute_of(evaluator, item, bound[1]) : item);
        evaluator.charge(total);
    }
    return total;
}

Value batch(Evaluator&, Arguments& a) {
    const Bound bound("batch", a, {"value", "linecount", "fill_with"}, 2);
    return Value::generator_of([&](Items& out) {
        const int64_t size = to_index(bound[1], "a batch size");
        Items row;
        for (const Value& item : iterate(bound[0])) {
            if (static_cast<int64_t>(row.size()) == size) out.push_back(Value::list(std::exchange(row, {})));
            row.push_back(item);
        }
        if (!row.empty()) {
            if (bound.given(2)) check_sequence(static_cast<std::size_t>(std::max<int64_t>(size, 0)));
            if (bound.given(2))
                row.resize(std::max(row.size(), static_cast<std::size_t>(std::max<int64_t>(size, 0))), bound[2]);
            out.push_back(Value::list(std::move(row)));
        }
    });
}

Value slices(Evaluator& evaluator, Arguments& a) {
    const Bound bound("slice", a, {"value", "slices", "fill_with"}, 2);
    return Value::generator_of([&](Items& out) {
        const Items items = iterate(bound[0]);
        const int64_t count = to_index(bound[1], "a number of slices"), size = static_cast<int64_t>(items.size());
        if (count == 0) fail("integer division or modulo by zero");
        if (count > 0) evaluator.charge(count);
        for (int64_t i = 0, at = 0; i < count; ++i) {
            const int64_t take = size / count + (i < size % count ? 1 : 0);
            Items part(items.begin() + at, items.begin() + at + take);
            if (bound.given(2) && i >= size % count) part.push_back(bound[2]);
            out.push_back(Value::list(std::move(part)));
            at += take;
        }
    });
}

}  // namespace

Value attribute_of(Evaluator& evaluator, const Value& value, const Value& path) {
    evaluator.charge(int64_t{1});
    if (!path.is_string()) return evaluator.item(value, path);
    Value current = value;
    for (const std::string_view part : text::split(path.string(), ".", -1, false)) {
        Value key(part);
        if (text::has_property(part, "ascii") && text::has_property(part, "digit") && part.size() < 19) {
            key = Integer{std::stoll(std::string(part))};
        }
        current = evaluator.item(current, key);
    }
    return current;
}

const FilterEntry sequence_filters[] = {
    {"default", default_value},
    {"d", default_value},
    {"length", length_of},
    {"count", length_of},
    {"first", first},
    {"last", last},
    {"reverse", reverse},
    {"list", list},
    {"items", items},
    {"attr", attr},
    {"map", map},
    {"select", select<true, false>},
    {"reject", select<false, false>},
    {"selectattr", select<true, true>},
    {"rejectattr", select<false, true>},
    {"sort", sort},
    {"dictsort", dict_sort},
    {"unique", unique},
    {"min", extreme<false>},
    {"max", extreme<true>},
    {"sum", sum},
    {"batch", batch},
    {"slice", slices},
    {"", nullptr},
};

}  // namespace unsloth::tokenizer::jinja
