// Results of short words, kept per thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "tokenizer/merges.h"

namespace unsloth::tokenizer {

/// An entry of a direct-mapped cache; fills a cache line.
struct alignas(64) CachedWord {
    static constexpr std::size_t max_bytes = 30, max_tokens = 6;
    uint64_t owner_and_size = 0;  // owner << 16 | bytes << 8 | tokens; 0: empty
    char bytes[max_bytes];
    char padding[2];
    int32_t ids[max_tokens];
};
static_assert(sizeof(CachedWord) == 64);

/// One model's view of the calling thread's cache, which all models share: no locks.
class WordCache {
  public:
    /// The entry where a word's result is or will be; null for words that are too long.
    CachedWord* entry(std::string_view word) const {
        if (word.size() > CachedWord::max_bytes) return nullptr;
        return &cache()[(hash_bytes(word) ^ owner_ * 0x9E3779B97F4A7C15u) % cached_words];
    }
    bool holds(const CachedWord& entry, std::string_view word) const {
        return (entry.owner_and_size & ~uint64_t{0xFF}) == key(word) &&
               std::memcmp(entry.bytes, word.data(), word.size()) == 0;
    }
    static std::size_t tokens(const CachedWord& entry) { return entry.owner_and_size & 0xFF; }
    /// Does nothing when there are too many tokens.
    void store(CachedWord& entry, std::string_view word, const std::vector<Symbol>& symbols) const {
        if (symbols.size() > CachedWord::max_tokens) return;
        entry.owner_and_size = key(word) | symbols.size();
        std::memcpy(entry.bytes, word.data(), word.size());
        for (std::size_t i = 0; i < symbols.size(); ++i) entry.ids[i] = symbols[i].id;
    }

  private:
    static constexpr std::size_t cached_words = 1 << 14;
    static std::vector<CachedWord>& cache() {
        thread_local std::vector<CachedWord> entries(cached_words);
        return entries;
    }
    static uint64_t next_owner() {
        static std::atomic<uint64_t> next{1};
        return next.fetch_add(1);
    }
    uint64_t key(std::string_view word) const { return owner_ << 16 | word.size() << 8; }

    uint64_t owner_ = next_owner();  ///< tells this model's words from another's
};

}  // namespace unsloth::tokenizer
