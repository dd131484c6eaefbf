// The merging of byte pair encoding (Sennrich et al. 2016): the pair of lowest rank first, the leftmost of equals. And
// the hash tables of the tokenizer's hot loops: open addressing, linear probing, filled once and then only read.
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace unsloth::tokenizer {

inline uint64_t hash_bytes(std::string_view bytes) {
    return XXH3_64bits(bytes.data(), bytes.size());
}
inline uint64_t hash_word(uint64_t word) {
    return XXH3_64bits(&word, sizeof word);
}

/// A slot whose value is `absent` is free.
template <class Key, class Value, Value absent, uint64_t (*hash)(Key)>
class FlatMap {
  public:
    explicit FlatMap(std::size_t entries = 0) : slots_(std::bit_ceil(entries * 2 + 2)) {}
    /// A repeated key takes the later value.
    void insert(Key key, Value value) { slots_[locate(key)] = {key, value}; }
    /// `absent` without the key.
    Value find(Key key) const { return slots_[locate(key)].value; }

  private:
    struct Slot {
        Key key{};
        Value value = absent;
    };
    std::size_t locate(Key key) const {
        const std::size_t mask = slots_.size() - 1;
        std::size_t at = hash(key) & mask;
        while (slots_[at].value != absent && slots_[at].key != key) at = (at + 1) & mask;
        return at;
    }
    std::vector<Slot> slots_;
};

/// Byte strings that live elsewhere (and longer) -> ids, -1 for others.
using StringTable = FlatMap<std::string_view, int32_t, -1, hash_bytes>;

/// What two neighbours become; rank is no_rank when they do not merge.
struct Merge {
    static constexpr uint32_t no_rank = 0xFFFFFFFF;
    uint32_t rank = no_rank;
    int32_t id = -1;
    bool operator==(const Merge&) const = default;
};
using MergeTable = FlatMap<uint64_t, Merge, Merge{}, hash_word>;
/// The key of two ids, both at least 0.
inline uint64_t pair_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

/// A token within a word and the number of bytes that it covers (at least 1).
struct Symbol {
    int32_t id;
    uint32_t length;
};

/// Merges until no pair is left that may be; time is close to linear in the number of symbols.
void merge_symbols(const MergeTable& table, std::vector<Symbol>& symbols);

}  // namespace unsloth::tokenizer
