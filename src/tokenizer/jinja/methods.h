// Methods of strings, lists, tuples and dicts.
#pragma once

#include <string_view>

#include "tokenizer/jinja/value.h"

namespace unsloth::tokenizer::jinja {

using Method = Value (*)(Evaluator&, const Value& self, Arguments& arguments);
struct MethodEntry {
    std::string_view name;
    Method function;
};

enum class Access {
    absent,  ///< Python's type has no such attribute
    safe,
    unsafe,  ///< it has one, and the sandbox forbids it
};
/// Whether Python's type of `value` has the attribute, and the method where it is one that can be called.
Access find_method(const Value& value, std::string_view name, const MethodEntry*& method);

/// A method and what it was taken from.
Value bind_method(const MethodEntry& method, const Value& self);

extern const MethodEntry string_methods[];  // ends with a null function
Value dict_items(const Value& dict);        ///< the view that dict.items() gives

}  // namespace unsloth::tokenizer::jinja
