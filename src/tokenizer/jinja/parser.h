// Source text to a program. Failure with the line for what Jinja's parser and compiler refuse.
#pragma once

#include <string_view>

#include "tokenizer/jinja/ast.h"

namespace unsloth::tokenizer::jinja {

Program parse(std::string_view source);

}
