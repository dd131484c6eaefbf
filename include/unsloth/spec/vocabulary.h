// A tokenizer as a list: what another program's model file must store of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace unsloth::spec {

/// What a token is; the values are SentencePiece's and ggml's.
enum class TokenKind : int32_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

struct VocabularyToken {
    std::string text;  ///< raw form; of added tokens as texts have it; empty for a hole (then `unused`)
    float score = 0;   ///< SentencePiece's: pieces of higher score are merged first
    TokenKind kind = TokenKind::unused;
};

struct Vocabulary {
    /// byte_bpe: words are found by a splitting pattern, and bytes spelled in GPT-2's alphabet are merged by rank.
    /// sentencepiece: the whole text, with spaces as U+2581, is merged by the scores of the results.
    enum class Kind { byte_bpe, sentencepiece } kind = Kind::byte_bpe;

    std::vector<VocabularyToken> tokens;  ///< the place is the id
    std::vector<std::string> merges;      ///< byte_bpe: "left right" by rank
    std::string pre_tokenizer;            ///< byte_bpe: llama.cpp's name for the splitting pattern, such as "llama-bpe"
    bool add_space_prefix = false;        ///< sentencepiece: a space goes in front of a text
    std::optional<int32_t> bos, eos, unknown, separator, padding, classification, mask;
    bool add_bos = false, add_eos = false;                            ///< around every text
    std::vector<std::pair<std::string, std::string>> chat_templates;  ///< Jinja by name, as Tokenizer::chat_templates
};

}  // namespace unsloth::spec
