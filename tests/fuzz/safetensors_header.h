// A mutation of safetensors files that keeps the length in front of the header right, so that the header is read.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "fuzz/support.h"

extern "C" std::size_t LLVMFuzzerMutate(uint8_t* data, std::size_t size, std::size_t max_size);

extern "C" inline std::size_t LLVMFuzzerCustomMutator(uint8_t* data, std::size_t size, std::size_t max_size,
                                                      unsigned int seed) {
    constexpr std::size_t front = sizeof(uint64_t);
    uint64_t length = 0;
    if (size > front) std::memcpy(&length, data, front);
    const bool is_sound = size > front && length <= size - front;
    if (!is_sound || seed % 4 == 0) return LLVMFuzzerMutate(data, size, max_size);

    const std::vector<uint8_t> tail(data + front + length, data + size);
    const std::size_t room = max_size - front - tail.size();
    const std::size_t header = LLVMFuzzerMutate(data + front, length, std::max<std::size_t>(room, 1));
    std::copy(tail.begin(), tail.end(), data + front + header);
    length = header;
    std::memcpy(data, &length, front);
    return front + header + tail.size();
}
