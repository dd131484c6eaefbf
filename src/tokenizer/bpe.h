// tokenizer.json's `model`: byte pair encoding of one word into tokens, over bytes (Llama 3, Qwen, GPT-2) or over
// characters as SentencePiece's vocabularies need it (Llama 2, Mistral, TinyLlama).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/merges.h"
#include "tokenizer/word_cache.h"

namespace unsloth::tokenizer {

/// What the file says, read and checked.
struct BpeSpec {
    std::vector<std::pair<std::string, int32_t>> vocab;  ///< token in its raw form, id >= 0
    StringTable ids;                                     ///< of `vocab`, whose strings it views: see index()
    struct Merge {
        int32_t left, right, merged;
    };
    std::vector<Merge> merges;  ///< in order of rank
    /// Takes the place of characters that the vocabulary lacks; without it they are dropped.
    std::optional<int32_t> unknown;
    bool fuse_unknown = false;
    bool byte_fallback = false;  ///< such a character becomes its bytes, <0x00> to <0xFF>, if all are tokens
    bool ignore_merges = false;  ///< a word that is in the vocabulary is that token, whatever the merges give
    /// Words come as raw bytes and the vocabulary spells bytes in GPT-2's alphabet; else words are UTF-8 and
    /// a character of a word is a character of the vocabulary.
    bool reads_bytes = false;

    BpeSpec() = default;
    BpeSpec(BpeSpec&&) = default;  // a copy would view the other's strings
    /// Fills `ids` from `vocab`, which must not change any more.
    void index();
    /// The ids of the tokens <0x00> to <0xFF>, -1 where the vocabulary lacks one.
    std::vector<int32_t> fallback_ids() const;
};

/// Tokens of a text so far, and how many bytes each covers where the caller wants that.
struct TokenSink {
    std::vector<int32_t>* ids;
    std::vector<uint32_t>* lengths;  ///< may be null

    void put(int32_t id, uint32_t length) const {
        ids->push_back(id);
        if (lengths) lengths->push_back(length);
    }
};

/// Immutable; safe from any thread.
class Bpe {
  public:
    explicit Bpe(const BpeSpec& spec);
    Bpe(const Bpe&) = delete;
    Bpe& operator=(const Bpe&) = delete;
    /// Appends the tokens of a word. Dropped characters belong to no token: then lengths fall short of the word.
    void encode(std::string_view word, const TokenSink& out) const;

  private:
    struct Unit {
        char32_t character;  ///< or byte
        uint32_t size;
    };
    Unit unit_at(std::string_view word, std::size_t at) const;
    void index_tokens(const BpeSpec& spec);
    void index_segments(const BpeSpec& spec);
    bool spell_as_bytes(std::string_view character, std::vector<Symbol>& symbols) const;
    void first_symbols(std::string_view word, std::vector<Symbol>& symbols) const;
    void encode_segments(std::string_view word, const TokenSink& out) const;
    void encode_part(std::string_view part, const TokenSink& out) const;
    void encode_unknown(std::string_view characters, const TokenSink& out) const;

    bool reads_bytes_;
    std::optional<int32_t> unknown_;
    bool fuse_unknown_, ignore_merges_;
    std::string texts_;  ///< of all tokens, as words spell them, where whole words are looked up
    StringTable words_;
    std::vector<uint32_t> token_length_;
    std::vector<int32_t> characters_;  ///< ids of single characters, or bytes; -1: none
    std::vector<int32_t> byte_ids_;    ///< of <0x00> to <0xFF>; empty without byte fallback
    bool all_bytes_ = false;           ///< each of them is there, or each byte of a vocabulary of bytes
    bool cached_ = false;              ///< a part's tokens depend on its text alone and cover it
    bool segmented_ = false;           ///< words may be cut where no token reaches across
    MergeTable merges_;
    MergeTable neighbours_;  ///< pairs of characters that stand side by side in some token (rank 0)
    WordCache cache_;
};

}  // namespace unsloth::tokenizer
