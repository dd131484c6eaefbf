// llama.cpp's names for the ways in which byte-level tokenizers split texts into words.
#pragma once

#include <string>

#include "tokenizer/tokenizer_spec.h"

namespace unsloth::tokenizer {

/// The name for a tokenizer read from `path`. Input Error that names the key when there is none: llama.cpp
/// would split texts in another way than the model was trained with.
std::string splitting_name(const TokenizerSpec& spec, const std::filesystem::path& path);

}  // namespace unsloth::tokenizer
