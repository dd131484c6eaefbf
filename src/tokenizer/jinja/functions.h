// Filters, tests, methods and global functions: those that published chat templates use.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/jinja/runtime.h"

namespace unsloth::tokenizer::jinja {

class Bound;

/// A function of this program. What is filtered or tested and a method's object is the first argument.
struct Native {
    std::string_view name;
    Value (*function)(const Bound&);
    /// In order; one that begins with * takes all that are left, and all named ones. Those of methods have no name.
    std::array<const char*, 4> parameters;
    std::size_t required;
};
/// Null for another name.
const Native* find_filter(std::string_view name);
const Native* find_string_filter(std::string_view name);
const Native* find_test(std::string_view name);
const Native* find_method(const Value& value, std::string_view name);
std::optional<Value> find_global(std::string_view name);

/// Failure for arguments that it does not take.
Value call(Rendering& rendering, const Native& native, const Arguments& arguments);
/// A method and what it was taken from.
Value bind_method(const Native& method, const Value& self);

/// Arguments put into place by position and name as Python does.
class Bound {
  public:
    Bound(Rendering& rendering, const Native& native, const Arguments& arguments);

    Rendering& rendering;
    const Arguments& arguments;  ///< all, as they were given

    bool has(std::size_t i) const { return values_[i].has_value(); }
    /// Given, and not none.
    bool given(std::size_t i) const { return values_[i] && !values_[i]->is_none(); }
    const Value& operator[](std::size_t i) const { return *values_[i]; }
    Value value_or(std::size_t i, Value otherwise) const { return values_[i] ? *values_[i] : otherwise; }
    bool boolean_or(std::size_t i, bool otherwise) const { return values_[i] ? truthy(*values_[i]) : otherwise; }
    int64_t integer_or(std::size_t i, int64_t otherwise) const {
        return values_[i] ? to_index(*values_[i], function_.data()) : otherwise;
    }
    /// A string; Failure for another type.
    const std::string& string(std::size_t i) const;
    /// Those from `first` on by position, and the named ones, after `value`.
    Arguments rest_after(const Value& value, std::size_t first) const;

  private:
    std::string_view function_;
    std::array<std::optional<Value>, 4> values_;
};

template <std::size_t n>
const Native* find_in(const Native (&table)[n], std::string_view name) {
    const auto found = std::ranges::find(table, name, &Native::name);
    return found == std::end(table) ? nullptr : found;
}

Value dict_items(const Value& dict);  ///< the view that dict.items() gives
/// The element at a path such as "function.name" or 0, as filters with `attribute` look it up.
Value at_path(const Value& value, const Value& path);
/// %s and %%, with `values` a tuple for several, anything else for one. Failure for other conversions.
std::string format_percent(std::string_view pattern, const Value& values);

}  // namespace unsloth::tokenizer::jinja
