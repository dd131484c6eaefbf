// Bytes as hexadecimal text.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace unsloth {

/// Two digits a byte, in lower case.
inline std::string hex(std::span<const std::byte> bytes) {
    constexpr const char* digits = "0123456789abcdef";
    std::string text;
    text.reserve(2 * bytes.size());
    for (const std::byte byte : bytes) {
        text += digits[std::to_integer<unsigned>(byte) >> 4];
        text += digits[std::to_integer<unsigned>(byte) & 15];
    }
    return text;
}

}  // namespace unsloth
