#include "unsloth/openai/token_text.h"

#include <array>
#include <optional>

#include "unsloth/core/utf8.h"

namespace unsloth::openai {
namespace {

constexpr std::string_view incomplete = "\xEF\xBF\xBD";

/// The byte of "<0xE2>", as SentencePiece's vocabularies name single bytes.
std::optional<char> named_byte(const std::string& raw) {
    constexpr std::string_view digits = "0123456789ABCDEF";
    if (raw.size() != 6 || !raw.starts_with("<0x") || raw[5] != '>') return std::nullopt;
    const std::size_t high = digits.find(raw[3]), low = digits.find(raw[4]);
    if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
    return static_cast<char>(high * 16 + low);
}

/// GPT-2's letters for bytes: printable ones are themselves, the others follow U+0100 in turn.
std::optional<char> byte_of_letter(uint32_t letter) {
    static const std::array<int, 512> table = [] {
        std::array<int, 512> bytes{};
        bytes.fill(-1);
        int next = 256;
        for (int byte = 0; byte < 256; ++byte) {
            const bool itself = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
            bytes[static_cast<std::size_t>(itself ? byte : next++)] = byte;
        }
        return bytes;
    }();
    if (letter >= table.size() || table[letter] < 0) return std::nullopt;
    return static_cast<char>(table[letter]);
}

std::optional<std::string> bytes_of_letters(const std::string& raw) {
    std::string bytes;
    for (std::size_t i = 0; i < raw.size();) {
        const auto first = static_cast<unsigned char>(raw[i]);
        uint32_t letter = first;  // letters take one byte or two
        if (first >= 0x80) {
            if (first >= 0xE0 || i + 1 == raw.size()) return std::nullopt;
            letter = (first & 0x1FU) << 6 | (static_cast<unsigned char>(raw[++i]) & 0x3FU);
        }
        ++i;
        const std::optional<char> byte = byte_of_letter(letter);
        if (!byte) return std::nullopt;
        bytes += *byte;
    }
    return bytes;
}

}  // namespace

std::string TokenText::name() const {
    if (is_whole) return bytes;
    std::string name = "bytes:";
    constexpr const char* digits = "0123456789abcdef";
    for (const char c : bytes) {
        const auto byte = static_cast<unsigned char>(c);
        name += "\\x";
        name += digits[byte / 16];
        name += digits[byte % 16];
    }
    return name;
}

std::string TokenText::text() const {
    return is_whole ? bytes : repair_utf8(bytes);
}

TokenText text_of_token(const tokenizer::Tokenizer& tokenizer, int32_t id) {
    if (id < 0 || id >= tokenizer.vocab_size()) return {"", true};  // rows of the embedding that no token has
    // Decoders drop a text's first space: the second of two equal tokens has it still.
    const std::string once = tokenizer.decode(std::array{id}, /*skip_special=*/false),
                      twice = tokenizer.decode(std::array{id, id}, /*skip_special=*/false);
    const std::string text = twice.starts_with(once) ? twice.substr(once.size()) : once;
    const std::string raw = tokenizer.token(id);
    if (text.find(incomplete) == std::string::npos && !named_byte(raw)) return {text, true};
    if (const auto byte = named_byte(raw)) {
        const std::string bytes(1, *byte);
        return {bytes, first_invalid_utf8(bytes) == bytes.size()};
    }
    const std::string bytes = bytes_of_letters(raw).value_or(text);
    return {bytes, first_invalid_utf8(bytes) == bytes.size()};
}

}  // namespace unsloth::openai
