#include "tokenizer/byte_level.h"

#include <array>

#include "tokenizer/unicode.h"

namespace unsloth::tokenizer {
namespace {

constexpr char32_t first_stand_in = 0x100;

struct Alphabet {
    std::array<int16_t, 0x144> byte{};  ///< of a character, or -1

    constexpr Alphabet() {
        for (int16_t& b : byte) b = -1;
        char32_t next = first_stand_in;
        for (int b = 0; b < 256; ++b) {
            const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
            byte[printable ? static_cast<char32_t>(b) : next++] = static_cast<int16_t>(b);
        }
    }
};
constexpr Alphabet alphabet;

}  // namespace

std::string_view character_of_byte(uint8_t byte) {
    static const std::array<std::string, 256> characters = [] {
        std::array<std::string, 256> out;
        for (std::size_t c = 0; c < alphabet.byte.size(); ++c) {
            if (alphabet.byte[c] >= 0)
                unicode::append(out[static_cast<std::size_t>(alphabet.byte[c])], static_cast<char32_t>(c));
        }
        return out;
    }();
    return characters[byte];
}

std::optional<std::string> bytes_of_token(std::string_view token) {
    std::string bytes;
    for (std::size_t at = 0; at < token.size();) {
        const unicode::Decoded d = unicode::decode(token, at);
        if (d.code_point >= alphabet.byte.size() || alphabet.byte[d.code_point] < 0) return std::nullopt;
        bytes += static_cast<char>(alphabet.byte[d.code_point]);
        at += d.size;
    }
    return bytes;
}

}  // namespace unsloth::tokenizer
