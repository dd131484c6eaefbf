// The parts of a tokenizer.json, read and checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/pre_tokenizer.h"

namespace unsloth {

struct TokenizerJson {
    BpeSpec model;
    bool nfc = false;
    std::vector<SplitStep> steps;
    std::vector<AddedToken> added;                ///< by first mention; ids as HF assigns them
    std::vector<int32_t> prefix_ids, suffix_ids;  ///< what the post-processor puts around a text
};

/// Input Error that names file and key for what is malformed or not known.
TokenizerJson read_tokenizer_json(const std::filesystem::path& path);

}  // namespace unsloth
