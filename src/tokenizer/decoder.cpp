#include "tokenizer/decoder.h"

#include <charconv>
#include <optional>
#include <string_view>

#include "tokenizer/byte_level.h"
#include "unsloth/core/utf8.h"

namespace unsloth::tokenizer {
namespace {

using Tokens = std::vector<std::string>;

std::string join(const Tokens& tokens, std::string_view between) {
    std::string out;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (i > 0) out += between;
        out += tokens[i];
    }
    return out;
}

/// The byte that "<0x0A>" stands for. Like the reference, "+A" is a number too.
std::optional<char> fallback_byte(std::string_view token) {
    if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return std::nullopt;
    const char* const last = token.data() + 5;
    uint8_t byte = 0;
    const auto [end, error] = std::from_chars(token.data() + (token[3] == '+' ? 4 : 3), last, byte, 16);
    return error == std::errc() && end == last ? std::optional(static_cast<char>(byte)) : std::nullopt;
}

void run(const ByteLevelDecoder&, Tokens& tokens, std::size_t) {
    std::string bytes;
    for (const std::string& token : tokens) bytes += bytes_of_token(token).value_or(token);
    tokens.assign(1, repair_utf8(bytes));
}

/// A run of bytes that is no UTF-8 becomes one U+FFFD a byte.
void run(const ByteFallbackDecoder&, Tokens& tokens, std::size_t) {
    Tokens out;
    std::string bytes;
    const auto flush = [&] {
        if (first_invalid_utf8(bytes) == bytes.size()) {
            if (!bytes.empty()) out.push_back(bytes);
        } else {
            out.insert(out.end(), bytes.size(), "\uFFFD");
        }
        bytes.clear();
    };
    for (std::string& token : tokens) {
        if (const std::optional<char> byte = fallback_byte(token)) {
            bytes += *byte;
        } else {
            flush();
            out.push_back(std::move(token));
        }
    }
    flush();
    tokens = std::move(out);
}

void run(const FuseDecoder&, Tokens& tokens, std::size_t) {
    tokens.assign(1, join(tokens, ""));
}

void run(const ReplaceDecoder& step, Tokens& tokens, std::size_t limit) {
    std::size_t size = 0;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[i].empty()) continue;
        Rewriter out(false, limit);
        append_replaced(step.pattern, step.not_in_first && i == 0 ? "" : step.content, tokens[i], out);
        tokens[i] = out.take_text();
        size += tokens[i].size();
        check_growth(size, limit);
    }
}

void run(const StripDecoder& step, Tokens& tokens, std::size_t) {
    for (std::string& token : tokens) {
        std::string_view rest = token;
        for (int32_t i = 0; i < step.start && rest.starts_with(step.content); ++i)
            rest.remove_prefix(step.content.size());
        for (int32_t i = 0; i < step.stop && rest.ends_with(step.content); ++i) rest.remove_suffix(step.content.size());
        token = std::string(rest);
    }
}

}  // namespace

std::string Decoder::decode(std::vector<std::string> tokens) const {
    std::size_t size = 0;
    for (const std::string& token : tokens) size += token.size();
    const std::size_t limit = growth_limit(size);
    for (const DecoderStep& step : steps) {
        std::visit([&](const auto& one) { run(one, tokens, limit); }, step);
    }
    return join(tokens, steps.empty() && !sequence ? " " : "");
}

}  // namespace unsloth::tokenizer
