#include "unsloth/openai/token_text.h"

#include <array>

#include "unsloth/core/utf8.h"
#include "unsloth/tokenizer/token_bytes.h"

namespace unsloth::openai {
namespace {

constexpr std::string_view incomplete = "\xEF\xBF\xBD";

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
    if (id < 0 || id >= tokenizer.vocab_size()) return {"", true, id};  // rows of the embedding that no token has
    // Decoders drop a text's first space: the second of two equal tokens has it still.
    const std::string once = tokenizer.decode(std::array{id}, /*skip_special=*/false),
                      twice = tokenizer.decode(std::array{id, id}, /*skip_special=*/false);
    const std::string text = twice.starts_with(once) ? twice.substr(once.size()) : once;
    const std::string raw = tokenizer.token(id);
    if (text.find(incomplete) == std::string::npos && !tokenizer::fallback_byte(raw)) return {text, true, id};
    if (const auto byte = tokenizer::fallback_byte(raw)) {
        const std::string bytes(1, *byte);
        return {bytes, first_invalid_utf8(bytes) == bytes.size(), id};
    }
    const std::string bytes = tokenizer::bytes_of_token(raw).value_or(text);
    return {bytes, first_invalid_utf8(bytes) == bytes.size(), id};
}

}  // namespace unsloth::openai
