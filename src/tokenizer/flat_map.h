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

/// (left, right) -> (rank, merged id). Both ids are at least 0.
class MergeTable {
  public:
    struct Merge {
        uint32_t rank;
        int32_t id;
    };
    static constexpr uint32_t no_rank = 0xFFFFFFFF;

    explicit MergeTable(std::size_t entries = 0) : slots_(std::bit_ceil(entries * 2 + 2)) {}
    /// A repeated pair takes the later rank.
    void insert(int32_t left, int32_t right, Merge merge) {
        const uint64_t key = key_of(left, right);
        Slot& slot = slots_[locate(key)];
        slot = {key, merge};
    }
    /// rank is no_rank when the pair does not merge.
    Merge find(int32_t left, int32_t right) const {
        const Slot& slot = slots_[locate(key_of(left, right))];
        return slot.key == empty ? Merge{no_rank, -1} : slot.merge;
    }

  private:
    static constexpr uint64_t empty = ~uint64_t{0};
    struct Slot {
        uint64_t key = empty;
        Merge merge{no_rank, -1};
    };
    static uint64_t key_of(int32_t left, int32_t right) {
        return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
    }
    std::size_t locate(uint64_t key) const {
        const std::size_t mask = slots_.size() - 1;
        std::size_t at = mix(key) & mask;
        while (slots_[at].key != key && slots_[at].key != empty) at = (at + 1) & mask;
        return at;
    }
    std::vector<Slot> slots_;
};

/// Byte strings that live elsewhere (and longer) -> ids.
class StringTable {
  public:
    explicit StringTable(std::size_t entries = 0) : slots_(std::bit_ceil(entries * 2 + 2)) {}
    /// A repeated string takes the later id.
    void insert(std::string_view text, int32_t id) { slots_[locate(text)] = {text, id}; }
    /// -1 when absent.
    int32_t find(std::string_view text) const { return slots_[locate(text)].id; }

  private:
    struct Slot {
        std::string_view text;
        int32_t id = -1;
    };
    std::size_t locate(std::string_view text) const {
        const std::size_t mask = slots_.size() - 1;
        std::size_t at = hash_bytes(text) & mask;
        while (slots_[at].id >= 0 && slots_[at].text != text) at = (at + 1) & mask;
        return at;
    }
    std::vector<Slot> slots_;
};

}  // namespace unsloth::tokenizer
