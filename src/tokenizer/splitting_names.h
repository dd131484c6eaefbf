// llama.cpp's names for the ways in which byte-level tokenizers split texts into words.
#pragma once

#include <string>

#include "tokenizer/json_reader.h"

namespace unsloth::tokenizer {

/// The name for a tokenizer.json, whose root is given. Input Error that names the key when there is none: llama.cpp
/// would split texts in another way than the model was trained with.
std::string splitting_name(const JsonReader& root);

}  // namespace unsloth::tokenizer
