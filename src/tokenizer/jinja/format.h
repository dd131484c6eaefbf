// Python's two ways to fill in strings: "%s" % values and "{}".format(values).
#pragma once

#include <string>
#include <string_view>

#include "tokenizer/jinja/value.h"

namespace unsloth::tokenizer::jinja {

/// `values`: a tuple for several, a dict for %(name)s, anything else for one.
std::string format_percent(std::string_view pattern, const Value& values);

/// str.format, with fields such as {0}, {name.member[key]!r:>8}.
std::string format_braces(Evaluator& evaluator, std::string_view pattern, const Arguments& arguments);

}  // namespace unsloth::tokenizer::jinja
