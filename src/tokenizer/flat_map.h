// Hash tables for the tokenizer's hot loops: open addressing, linear probing, filled once and then only read.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace unsloth::tokenizer {

/// Mixes 64 bits so that the upper ones depend on all (Fibonacci hashing with a folded product).
inline uint64_t mix(uint64_t x) {
    const auto product = static_cast<unsigned __int128>(x ^ 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t hash_bytes(std::string_view bytes) {
    uint64_t hash = bytes.size();
    while (bytes.size() >= 8) {
        uint64_t word;
        std::memcpy(&word, bytes.data(), 8);
        hash = mix(hash ^ word);
        bytes.remove_prefix(8);
    }
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), bytes.size());
    return mix(hash ^ word);
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
using MergeTable = FlatMap<uint64_t, Merge, Merge{}, mix>;
/// The key of two ids, both at least 0.
inline uint64_t pair_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

}  // namespace unsloth::tokenizer
