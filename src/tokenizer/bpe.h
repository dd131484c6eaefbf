// Byte pair encoding of one word over a byte-level vocabulary.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/flat_map.h"

namespace unsloth {

/// What tokenizer.json's `model` says, read and checked.
struct BpeSpec {
    std::vector<std::pair<std::string, int32_t>> vocab;  ///< token in its raw form, id >= 0
    struct Merge {
        int32_t left, right, merged;
    };
    std::vector<Merge> merges;  ///< in order of rank
    std::optional<int32_t>
        unknown;  ///< takes the place of bytes that the vocabulary lacks; else they are dropped
    bool fuse_unknown = false;
    bool ignore_merges = false;  ///< a word that is in the vocabulary is that token, whatever the merges give
};

/// Tokens of a text so far, and how many bytes each covers where the caller wants that.
struct TokenSink {
    std::vector<int32_t>* ids;
    std::vector<uint32_t>* lengths;  ///< may be null
};

/// Immutable; safe from any thread. A word's result comes from a cache of the calling thread where possible.
class Bpe {
  public:
    explicit Bpe(const BpeSpec& spec);
    /// Appends the tokens of a word (raw bytes). Dropped bytes belong to no token: then lengths fall short of
    /// the word.
    void encode(std::string_view word, const TokenSink& out) const;

  private:
    struct Symbol {
        int32_t id;
        uint32_t length;
    };
    void first_symbols(std::string_view word, std::vector<Symbol>& symbols) const;
    void merge_short(std::vector<Symbol>& symbols) const;
    void merge_long(std::vector<Symbol>& symbols) const;

    uint64_t owner_;  ///< tells this model's words in a thread's cache from another's
    std::array<int32_t, 256> byte_ids_;
    bool complete_ = true;  ///< every byte has an id
    std::optional<int32_t> unknown_;
    bool fuse_unknown_;
    bool ignore_merges_;
    std::string token_bytes_;
    std::vector<uint32_t> token_length_;
    StringTable words_;  ///< only with ignore_merges
    MergeTable merges_;
};

}  // namespace unsloth
