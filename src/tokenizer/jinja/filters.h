// Filters by name: value|name(arguments).
#pragma once

#include <string>
#include <string_view>

#include "tokenizer/jinja/value.h"

namespace unsloth::tokenizer::jinja {

/// `arguments.positional[0]` is the filtered value.
using Filter = Value (*)(Evaluator&, Arguments& arguments);
struct FilterEntry {
    std::string_view name;
    Filter function;
};
/// Null for a name that is not known.
const FilterEntry* find_filter(std::string_view name);
/// value|attr lookup by a path such as "function.name" or 0, as filters with `attribute` do it.
Value attribute_of(Evaluator& evaluator, const Value& value, const Value& path);
/// The message for such a name: Jinja does not know it, or only this program does not.
std::string unknown_filter(std::string_view name);

// Tables of the files that implement them, each ending with a null function.
extern const FilterEntry text_filters[];
extern const FilterEntry number_filters[];
extern const FilterEntry sequence_filters[];

}  // namespace unsloth::tokenizer::jinja
