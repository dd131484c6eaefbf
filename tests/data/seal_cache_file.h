// Gives a changed file of the row cache the counts and checksums that belong to it, so that its content is looked at.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "data/store.h"
#include "unsloth/core/hash.h"

namespace unsloth::data {

/// As at the front of a file (src/data/cache_file.cpp).
struct CacheHeader {
    char mark[8];
    uint64_t words, records, report_bytes, words_hash, tail_hash, own_hash, reserved;
};

/// How much of the file is words and records is told by the numbers that are there, as far as it is long enough.
inline void seal_cache_file(std::span<uint8_t> file) {
    if (file.size() < sizeof(CacheHeader)) return;
    const auto hash_of = [&](std::size_t begin, std::size_t size) {
        ContentHash hash;
        hash.add({reinterpret_cast<const char*>(file.data()) + begin, size});
        return hash.word();
    };
    CacheHeader header;
    std::memcpy(&header, file.data(), sizeof header);
    std::memcpy(header.mark, "UNSLROW2", sizeof header.mark);
    header.words = std::min<uint64_t>(header.words, (file.size() - sizeof header) / sizeof(int32_t));
    const std::size_t tail = std::min((sizeof header + header.words * sizeof(int32_t) + 7) / 8 * 8, file.size());
    header.records = std::min<uint64_t>(header.records, (file.size() - tail) / sizeof(RowRecord));
    header.report_bytes = file.size() - tail - header.records * sizeof(RowRecord);
    header.words_hash = hash_of(sizeof header, header.words * sizeof(int32_t));
    header.tail_hash = hash_of(tail, file.size() - tail);
    std::memcpy(file.data(), &header, sizeof header);
    header.own_hash = hash_of(0, offsetof(CacheHeader, own_hash));
    std::memcpy(file.data(), &header, sizeof header);
}

}  // namespace unsloth::data
