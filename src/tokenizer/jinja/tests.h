// Tests by name: value is name(arguments).
#pragma once

#include <string_view>

#include "tokenizer/jinja/value.h"

namespace unsloth::tokenizer::jinja {

/// `arguments.positional[0]` is the tested value.
using Test = bool (*)(Evaluator&, Arguments& arguments);
struct TestEntry {
    std::string_view name;
    Test function;
};
/// Null for a name that is not known.
const TestEntry* find_test(std::string_view name);

}  // namespace unsloth::tokenizer::jinja
