// What + - * / // % ** == < in [] and slices do with values.
#pragma once

#include "tokenizer/jinja/ast.h"
#include "tokenizer/jinja/value.h"

namespace unsloth::jinja {

/// Limits on one value, so that a template cannot take all memory. A row has 64 MiB at most.
constexpr std::size_t longest_string = std::size_t{64} << 20, longest_sequence = 1'000'000;
constexpr const char* too_long_a_string = "a string of more than 64 MiB";

Value arithmetic(Operation operation, const Value& a, const Value& b);
Value negate(const Value& value);
Value plus(const Value& value);
/// == != < <= > >= in, not in.
bool compare(Operation operation, const Value& a, const Value& b);
bool contains(const Value& container, const Value& value);
/// value[start:stop:step]; none where a part is absent.
Value slice(const Value& value, const Value& start, const Value& stop, const Value& step);
/// value[key] for strings, sequences and dicts; nullopt where Python has no such element.
std::optional<Value> element(const Value& value, const Value& key);

}  // namespace unsloth::jinja
