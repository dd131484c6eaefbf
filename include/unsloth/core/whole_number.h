// Numbers in names and lists.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace unsloth {

/// The number that a text of digits alone says; nothing for any other text, and for numbers beyond int64_t.
inline std::optional<int64_t> whole_number(std::string_view text) {
    int64_t number = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, failure] = std::from_chars(text.data(), end, number);
    const bool all = failure == std::errc() && stop == end && text.front() != '-';
    return all ? std::optional(number) : std::nullopt;
}

}  // namespace unsloth
