// What + - * / // % ** == < in [] and slices do with values.
#pragma once

#include "tokenizer/jinja/ast.h"
#include "tokenizer/jinja/limits.h"
#include "tokenizer/jinja/value.h"

namespace unsloth::tokenizer::jinja {

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

}  // namespace unsloth::tokenizer::jinja
