// A tokenizer's files as the list that a GGUF file holds.
#pragma once

#include <filesystem>
#include <string>

#include "unsloth/spec/vocabulary.h"

namespace unsloth::tokenizer {

/// Reads what Tokenizer::load reads. `pre_tokenizer`: llama.cpp's name of the splitting pattern, to be taken unchecked;
/// empty: found by the pattern. Pieces have the scores of tokenizer.model where it is there and agrees with
/// tokenizer.json; else scores that fall with the rank of the merge that makes them.
/// Input Error, with file and key, as Tokenizer::load, and for tokenizers that llama.cpp cannot express: a pattern it
/// has no name for, other normalisation.
spec::Vocabulary read_vocabulary(const std::filesystem::path& folder, const std::string& pre_tokenizer = {});

}  // namespace unsloth::tokenizer
