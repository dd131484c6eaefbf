// Byte pair encoding of one word over a byte-level vocabulary (Llama 3, Qwen, GPT-2).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/flat_map.h"
#include "tokenizer/merges.h"
#include "tokenizer/model.h"
#include "tokenizer/word_cache.h"

namespace unsloth::tokenizer {

class ByteBpe : public Model {
  public:
    explicit ByteBpe(const BpeSpec& spec);
    void encode(std::string_view word, const TokenSink& out) const override;

  private:
    void first_symbols(std::string_view word, std::vector<Symbol>& symbols) const;

    std::array<int32_t, 256> byte_ids_;
    bool complete_ = true;  ///< every byte has an id
    std::optional<int32_t> unknown_;
    bool fuse_unknown_;
    bool ignore_merges_;
    std::string token_bytes_;
    std::vector<uint32_t> token_length_;
    StringTable words_;  ///< only with ignore_merges
    MergeTable merges_;
    WordCache cache_;
};

}  // namespace unsloth::tokenizer
