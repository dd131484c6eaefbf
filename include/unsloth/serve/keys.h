// Keys of the API.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace unsloth::serve {

constexpr std::size_t longest_key = 256;

/// The number of the key that equals `given`, -1: none. How long it takes depends on neither.
inline int64_t find_key(const std::vector<std::string>& keys, std::string_view given) {
    int64_t found = -1;
    const auto padded = [](std::string_view text, std::size_t i) -> unsigned char {
        return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
    };
    for (std::size_t k = 0; k < keys.size(); ++k) {
        volatile std::size_t differs = keys[k].size() ^ given.size();
        for (std::size_t i = 0; i < longest_key; ++i)
            differs = differs | static_cast<std::size_t>(padded(keys[k], i) ^ padded(given, i));
        const auto same = static_cast<int64_t>(differs == 0);
        found = same * static_cast<int64_t>(k) + (1 - same) * found;
    }
    return found;
}

}  // namespace unsloth::serve
