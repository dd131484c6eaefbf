// Tokenizers that come as SentencePiece's tokenizer.model, without a tokenizer.json.
#pragma once

#include <filesystem>

#include "tokenizer/tokenizer_spec.h"

namespace unsloth::tokenizer {

/// What transformers 5's LlamaTokenizer makes of tokenizer.model and the files beside it:
/// tokenizer_config.json
/// (`legacy`, `add_prefix_space`, `add_bos_token`, `add_eos_token`, `added_tokens_decoder`, named special
/// tokens), special_tokens_map.json and added_tokens.json. Input Error that names file and key.
TokenizerSpec read_sentencepiece_tokenizer(const std::filesystem::path& folder);

}  // namespace unsloth::tokenizer
