// tokenizer.json's `model`: from words to tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/flat_map.h"

namespace unsloth::tokenizer {

/// What the file says, read and checked.
struct BpeSpec {
    std::vector<std::pair<std::string, int32_t>> vocab;  ///< token in its raw form, id >= 0
    struct Merge {
        int32_t left, right, merged;
    };
    std::vector<Merge> merges;  ///< in order of rank
    /// Takes the place of characters that the vocabulary lacks; without it they are dropped.
    std::optional<int32_t> unknown;
    bool fuse_unknown = false;
    bool byte_fallback = false;      ///< such a character becomes its bytes, <0x00> to <0xFF>, if all are tokens
    bool ignore_merges = false;      ///< a word that is in the vocabulary is that token, whatever the merges give
    std::string subword_prefix;      ///< stands before every character of a word but the first, in the vocabulary
    std::string end_of_word_suffix;  ///< stands behind the last character of a word, in the vocabulary
    /// Words come as raw bytes and the vocabulary spells bytes in GPT-2's alphabet; else words are UTF-8 and
    /// a character of a word is a character of the vocabulary.
    bool reads_bytes = false;
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
class Model {
  public:
    virtual ~Model() = default;
    /// Appends the tokens of a word. Dropped characters belong to no token: then lengths fall short of the
    /// word.
    virtual void encode(std::string_view word, const TokenSink& out) const = 0;
};

std::unique_ptr<const Model> make_model(const BpeSpec& spec);

/// The tokens of `vocab` by their raw forms. Views its strings, which must not change any more.
StringTable index_vocab(const std::vector<std::pair<std::string, int32_t>>& vocab);

/// The ids of the tokens <0x00> to <0xFF>, -1 where the vocabulary lacks one.
std::vector<int32_t> fallback_ids(const StringTable& vocab);

}  // namespace unsloth::tokenizer
