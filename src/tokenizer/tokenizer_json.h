// tokenizer.json of Hugging Face's `tokenizers`.
#pragma once

#include <filesystem>

#include "tokenizer/tokenizer_spec.h"

namespace unsloth::tokenizer {

/// Input Error that names file and key for what is malformed or not known.
TokenizerSpec read_tokenizer_json(const std::filesystem::path& path);

}  // namespace unsloth::tokenizer
