// Everything that makes a tokenizer, as read from tokenizer.json or tokenizer.model and checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/json_reader.h"
#include "tokenizer/pipeline.h"

namespace unsloth::tokenizer {

struct TokenizerSpec {
    BpeSpec model;
    std::vector<NormalizerStep> normalizer;
    std::vector<PreTokenizerStep> pre_tokenizer;
    Decoder decoder;
    std::vector<AddedToken> added;                ///< by first mention; ids as HF assigns them
    std::vector<int32_t> prefix_ids, suffix_ids;  ///< what the post-processor puts around a text
    std::optional<int32_t> bos, eos;              ///< where the model's own file names them
};

/// tokenizer.json of Hugging Face's `tokenizers`. Input Error that names file and key for what is malformed or not
/// known.
TokenizerSpec read_tokenizer_json(const std::filesystem::path& path);

/// Its parts around the model: normalizer, pre_tokenizer, decoder, and the ids that post_processor puts around a single
/// text. Input Error that names the key for what is malformed or not known.
void read_pipeline(const JsonReader& root, TokenizerSpec& out);

/// What transformers 5's LlamaTokenizer makes of tokenizer.model and the files next to it: tokenizer_config.json
/// (`legacy`, `add_prefix_space`, `add_bos_token`, `add_eos_token`, `added_tokens_decoder`, named special tokens),
/// special_tokens_map.json and added_tokens.json. Input Error that names file and key.
TokenizerSpec read_sentencepiece_tokenizer(const std::filesystem::path& folder);

}  // namespace unsloth::tokenizer
