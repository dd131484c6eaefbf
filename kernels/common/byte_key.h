// Keys of look-up tables that are compared and hashed as bytes. Host code.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace unsloth::kernels {

/// T has no padding (the code that defines it asserts that) and takes whole 8-byte words.
template <class T>
struct ByteHash {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % 8 == 0);
    std::size_t operator()(const T& key) const {
        std::array<uint64_t, sizeof(T) / 8> words;
        std::memcpy(words.data(), &key, sizeof(T));
        uint64_t hash = 0x9E3779B97F4A7C15u;
        for (const uint64_t word : words) {
            hash ^= word + 0x9E3779B97F4A7C15u + (hash << 6) + (hash >> 2);
            hash *= 0xBF58476D1CE4E5B9u;
        }
        return hash ^ (hash >> 31);
    }
};

template <class T>
struct ByteEqual {
    bool operator()(const T& a, const T& b) const { return std::memcmp(&a, &b, sizeof(T)) == 0; }
};

}  // namespace unsloth::kernels
