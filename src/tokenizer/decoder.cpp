#include "tokenizer/decoder.h"

#include <optional>
#include <string_view>

#include "tokenizer/byte_level.h"
#include "tokenizer/matches.h"

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

std::optional<uint8_t> hexadecimal_digit(char c) {
    if (c >= '0' && c <= '9') return static_cast<uint8_t>(c - '0');
    if (c >= 'a' && c <= 'f') return static_cast<uint8_t>(c - 'a' + 10);
    if (c >= 'A' && c <= 'F') return static_cast<uint8_t>(c - 'A' + 10);
    return std::nullopt;
}

/// The byte that "<0x0A>" stands for. Like the reference, "+A" is a number too.
std::optional<char> fallback_byte(std::string_view token) {
    if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return std::nullopt;
    const std::optional<uint8_t> high = token[3] == '+' ? uint8_t{0} : hexadecimal_digit(token[3]);
    const std::optional<uint8_t> low = hexadecimal_digit(token[4]);
    if (!high || !low) return std::nullopt;
    return static_cast<char>(*high << 4 | *low);
}

/// `limit`: how long the result may be.
std::string replaced(const Pattern& pattern, std::string_view content, std::string_view token, std::size_t limit) {
    std::string out;
    std::size_t done = 0;
    const auto found = [&](std::size_t begin, std::size_t end) {
        out += token.substr(done, begin - done);
        out += content;
        check_growth(out.size(), limit);
        done = end;
    };
    if (!pattern.regex) {
        for_each_match(std::string_view(pattern.literal), token, found);
    } else if (!token.empty()) {
        std::string shadow;
        for_each_match(*pattern.regex, unicode::shadow_categories(token, shadow) ? shadow : token, found);
    }
    out += token.substr(done);
    return out;
}

void run(const ByteLevelDecoder&, Tokens& tokens, std::size_t) {
    std::string bytes, text;
    for (const std::string& token : tokens) bytes += bytes_of_token(token).value_or(token);
    unicode::append_lossy(text, bytes);
    tokens.assign(1, std::move(text));
}

/// A run of bytes that is no UTF-8 becomes one U+FFFD a byte.
void run(const ByteFallbackDecoder&, Tokens& tokens, std::size_t) {
    Tokens out;
    std::string bytes;
    const auto flush = [&] {
        if (unicode::valid_prefix(bytes) == bytes.size()) {
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
    for (std::string& token : tokens) {
        token = replaced(step.pattern, step.content, token, limit);
        size += token.size();
        check_growth(size, limit);
    }
}

void run(const StripDecoder& step, Tokens& tokens, std::size_t) {
    for (std::string& token : tokens) {
        std::string_view rest = token;
        const std::size_t size = step.content.size();
        for (std::size_t i = 0; i < step.start && rest.substr(0, size) == step.content; ++i) rest.remove_prefix(size);
        for (std::size_t i = 0; i < step.stop && rest.size() >= size && rest.substr(rest.size() - size) == step.content;
             ++i) {
            rest.remove_suffix(size);
        }
        token = std::string(rest);
    }
}

void run(const MetaspaceDecoder& step, Tokens& tokens, std::size_t limit) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        const Pattern pattern{std::nullopt, step.replacement};
        tokens[i] = replaced(pattern, i == 0 && step.drop_first ? "" : " ", tokens[i], limit);
    }
}

void run(const SuffixDecoder& step, Tokens& tokens, std::size_t limit) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        const Pattern pattern{std::nullopt, step.suffix};
        tokens[i] = replaced(pattern, i + 1 == tokens.size() ? "" : " ", tokens[i], limit);
    }
}

}  // namespace

std::string Decoder::decode(std::vector<std::string> tokens) const {
    std::size_t size = 0;
    for (const std::string& token : tokens) size += token.size();
    const std::size_t limit = growth_limit(size);
    for (const DecoderStep& step : steps_) {
        std::visit([&](const auto& one) { run(one, tokens, limit); }, step);
    }
    return join(tokens, steps_.empty() && !sequence_ ? " " : "");
}

}  // namespace unsloth::tokenizer
