// Values as text: Python's str and repr, and JSON as transformers' tojson filter writes it.
#pragma once

#include <optional>
#include <string>

#include "tokenizer/jinja/value.h"

namespace unsloth::tokenizer::jinja {

std::string to_string(const Value& value);
std::string repr(const Value& value);
std::string repr(double value);

struct JsonStyle {
    bool ensure_ascii = false;
    std::optional<std::string> indent;  ///< of one level; without it everything is on one line
    std::string item_separator = ", ", key_separator = ": ";
    bool sort_keys = false;
};
/// json.dumps; Failure for values that JSON does not have.
std::string to_json(const Value& value, const JsonStyle& style);

}  // namespace unsloth::tokenizer::jinja
