// SentencePiece's model file, tokenizer.model (sentencepiece_model.proto of the library).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "unsloth/spec/vocabulary.h"

namespace unsloth::tokenizer {

struct SentencePieceModel {
    struct Piece {
        std::string text;  ///< valid UTF-8, not empty
        float score = 0;
        spec::TokenKind kind = spec::TokenKind::normal;
    };
    std::vector<Piece> pieces;                       ///< the place is the id
    int32_t unknown_id = 0, bos_id = 1, eos_id = 2;  ///< -1: none
    bool add_dummy_prefix = true;
    /// The text is rewritten before it is split, in ways that transformers' LlamaTokenizer omits.
    bool remove_extra_whitespaces = true, has_character_map = false;
};

/// Input Error with file and byte for what is malformed, and for models that are not BPE with spaces written
/// as U+2581.
SentencePieceModel read_sentencepiece_model(const std::filesystem::path& path);

}  // namespace unsloth::tokenizer
