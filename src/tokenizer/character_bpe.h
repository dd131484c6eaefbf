// Byte pair encoding over characters, as SentencePiece's vocabularies need it (Llama 2, Mistral, TinyLlama).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/flat_map.h"
#include "tokenizer/merges.h"
#include "tokenizer/model.h"
#include "tokenizer/word_cache.h"

namespace unsloth::tokenizer {

class CharacterBpe : public Model {
  public:
    explicit CharacterBpe(const BpeSpec& spec);
    void encode(std::string_view word, const TokenSink& out) const override;

  private:
    /// Ids of single characters, in pages of 256 code points.
    class CharacterTable {
      public:
        CharacterTable() : page_of_(0x1100, 0), ids_(256, -1) {}
        void insert(char32_t c, int32_t id);
        int32_t find(char32_t c) const { return ids_[page_of_[c >> 8] + (c & 0xFF)]; }

      private:
        std::vector<uint32_t> page_of_;  ///< where a page begins in ids_; the first one is empty
        std::vector<int32_t> ids_;
    };

    int32_t id_of(std::string_view character, bool first, bool last) const;
    void first_symbols(std::string_view word, std::vector<Symbol>& symbols) const;
    void index_segments(const BpeSpec& spec);
    void encode_segments(std::string_view word, const TokenSink& out) const;
    void encode_segment(std::string_view segment, const TokenSink& out) const;
    void encode_unknown(std::string_view characters, const TokenSink& out) const;

    std::vector<std::pair<std::string, int32_t>> vocab_;
    StringTable ids_;
    CharacterTable characters_;
    std::vector<int32_t> byte_ids_;  ///< of <0x00> to <0xFF>; empty without byte fallback
    bool all_bytes_ = false;         ///< each of them is there
    std::optional<int32_t> unknown_;
    bool fuse_unknown_, ignore_merges_;
    std::string prefix_, suffix_;
    MergeTable merges_;
    bool segmented_ = false;  ///< words may be cut where no token reaches across
    MergeTable neighbours_;   ///< pairs of characters that stand side by side in some token (rank 0)
    std::vector<uint32_t> token_length_;
    WordCache cache_;
};

}  // namespace unsloth::tokenizer
