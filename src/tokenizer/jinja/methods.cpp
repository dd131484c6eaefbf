#include "tokenizer/jinja/methods.h"

#include <algorithm>
#include <array>

#include "tokenizer/jinja/arguments.h"
#include "tokenizer/jinja/evaluator.h"
#include "tokenizer/jinja/objects.h"
#include "tokenizer/jinja/operators.h"
#include "tokenizer/jinja/print.h"
#include "tokenizer/jinja/text.h"
#include "unsloth/core/error.h"

namespace unsloth::tokenizer::jinja {
namespace {

constexpr std::array<std::string_view, 5> changes_dict = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::array<std::string_view, 8> changes_list = {"append", "clear", "pop",    "reverse",
                                                          "insert", "sort",  "extend", "remove"};
/// What every Python object has; templates may not touch it.
constexpr std::array<std::string_view, 12> internal = {"__class__", "__init__", "__len__",     "__iter__",
                                                       "__dict__",  "__doc__",  "__eq__",      "__str__",
                                                       "__repr__",  "__hash__", "__getitem__", "__contains__"};

template <std::size_t n>
bool has(const std::array<std::string_view, n>& names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

const MethodEntry* look_up(const MethodEntry* table, std::string_view name) {
    for (; table->function; ++table) {
        if (table->name == name) return table;
    }
    return nullptr;
}

Value view(const char* name, Items items) {
    return std::make_shared<Sequence>(Sequence::Kind::view, std::move(items), name);
}

Value dict_items_method(Evaluator&, const Value& self, Arguments& a) {
    const Bound bound("items", a, {}, 0);
    return dict_items(self);
}

Value dict_keys(Evaluator&, const Value& self, Arguments& a) {
    const Bound bound("keys", a, {}, 0);
    return view("dict_keys", iterate(self));
}

Value dict_values(Evaluator&, const Value& self, Arguments& a) {
    const Bound bound("values", a, {}, 0);
    Items values;
    for (const auto& [key, value] : self.dict().entries()) values.push_back(value);
    return view("dict_values", std::move(values));
}

Value dict_get(Evaluator&, const Value& self, Arguments& a) {
    const Bound bound("get", a, {"key", "default"}, 1, true);
    const Value* found = self.dict().find(bound[0]);
    return found ? *found : bound.value_or(1, Value());
}

Value copy(Evaluator&, const Value& self, Arguments& a) {
    const Bound bound("copy", a, {}, 0);
    if (self.is(Value::Kind::dict)) return std::make_shared<Dict>(self.dict());
    return Value::list(self.sequence().items);
}

Value dict_from_keys(Evaluator&, const Value&, Arguments& a) {
    const Bound bound("fromkeys", a, {"iterable", "value"}, 1, true);
    auto dict = std::make_shared<Dict>();
    for (const Value& key : iterate(bound[0])) dict->set(key, bound.value_or(1, Value()));
    return dict;
}

Value sequence_count(Evaluator&, const Value& self, Arguments& a) {
    const Bound bound("count", a, {"value"}, 1, true);
    const Items& items = self.sequence().items;
    return static_cast<std::size_t>(
        std::count_if(items.begin(), items.end(), [&](const Value& item) { return equal(item, bound[0]); }));
}

Value sequence_index(Evaluator&, const Value& self, Arguments& a) {
    const Bound bound("index", a, {"value", "start", "stop"}, 1, true);
    const Items& items = self.sequence().items;
    const auto size = static_cast<int64_t>(items.size());
    const auto place = [&](std::size_t i, int64_t otherwise) {
        const int64_t at = bound.integer_or(i, otherwise);
        return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size);
    };
    const int64_t end = place(2, size);
    for (int64_t i = place(1, 0); i < end; ++i) {
        if (equal(items[static_cast<std::size_t>(i)], bound[0])) return Integer{i};
    }
    fail(cat(repr(bound[0]), " is not in ", type_name(self)));
}

constexpr MethodEntry dict_methods[] = {
    {"items", dict_items_method}, {"keys", dict_keys}, {"values", dict_values}, {"get", dict_get}, {"copy", copy},
    {"fromkeys", dict_from_keys}, {"", nullptr},
};
constexpr MethodEntry list_methods[] = {
    {"count", sequence_count}, {"index", sequence_index}, {"copy", copy}, {"", nullptr}};
constexpr MethodEntry tuple_methods[] = {{"count", sequence_count}, {"index", sequence_index}, {"", nullptr}};

}  // namespace

Value dict_items(const Value& dict) {
    Items pairs;
    for (const auto& [key, value] : dict.dict().entries()) pairs.push_back(Value::tuple({key, value}));
    return view("dict_items", std::move(pairs));
}

Access find_method(const Value& value, std::string_view name, const MethodEntry*& method) {
    method = nullptr;
    if (has(internal, name)) return Access::unsafe;
    switch (value.kind()) {
        case Value::Kind::string:
            method = look_up(string_methods, name);
            break;
        case Value::Kind::dict:
            if (has(changes_dict, name)) return Access::unsafe;
            method = look_up(dict_methods, name);
            break;
        case Value::Kind::sequence:
            if (value.is_sequence(Sequence::Kind::list)) {
                if (has(changes_list, name)) return Access::unsafe;
                method = look_up(list_methods, name);
            } else if (value.is_sequence(Sequence::Kind::tuple) || value.is_sequence(Sequence::Kind::range)) {
                method = look_up(tuple_methods, name);
            }
            break;
        default:
            break;
    }
    return method ? Access::safe : Access::absent;
}

Value bind_method(const MethodEntry& method, const Value& self) {
    return std::shared_ptr<Object>(std::make_shared<NativeFunction>(
        "builtin_function_or_method", [&method, self](Evaluator& evaluator, Arguments& a) {
            evaluator.charge(self);
            for (const Value& argument : a.positional) evaluator.charge(argument);
            return method.function(evaluator, self, a);
        }));
}

}  // namespace unsloth::tokenizer::jinja
