// Everything that makes a tokenizer, as read from tokenizer.json or tokenizer.model and checked.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/decoder.h"
#include "tokenizer/model.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"

namespace unsloth::tokenizer {

struct TokenizerSpec {
    BpeSpec model;
    Normalizer normalizer;
    std::vector<PreTokenizerStep> pre_tokenizer;
    Decoder decoder;
    std::vector<AddedToken> added;                ///< by first mention; ids as HF assigns them
    std::vector<int32_t> prefix_ids, suffix_ids;  ///< what the post-processor puts around a text
    bool as_llama = false;                        ///< made as transformers' LlamaTokenizer is
    std::optional<int32_t> bos, eos;              ///< where the model's own file names them
};

}  // namespace unsloth::tokenizer
