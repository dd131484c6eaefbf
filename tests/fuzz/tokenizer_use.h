// What every tokenizer must bear that could be loaded: texts in, ids out and back, and the rows of a training set.
#pragma once

#include <span>
#include <vector>

#include "fuzz/support.h"
#include "unsloth/data/encoder.h"
#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::fuzz {

/// Encodes and decodes `text`, and checks what holds of every tokenizer.
inline void use(const tokenizer::Tokenizer& tokenizer, std::string_view text) {
    accepts([&] {
        for (const bool special : {false, true}) {
            const tokenizer::Encoding encoding = tokenizer.encode_with_offsets(text, special);
            require(tokenizer.encode(text, special) == encoding.ids, "the ids depend on whether offsets are asked for");
            require(encoding.offsets.size() == encoding.ids.size(), "ids without offsets");
            for (const auto& [begin, end] : encoding.offsets)
                require(begin <= end && end <= text.size(), "an offset outside of the text");
            tokenizer.decode(encoding.ids, special);
        }
    });
}

/// Looks at the tokens one by one.
inline void look_at_tokens(const tokenizer::Tokenizer& tokenizer) {
    for (int32_t id = 0; id < std::min<int64_t>(tokenizer.vocab_size(), 300); ++id) {
        const std::string token = tokenizer.token(id);
        require(!token.empty() || !tokenizer.is_special(id), "a hole of the vocabulary is special");
        tokenizer.decode(std::span(&id, 1), false);
    }
}

/// Encodes rows of all kinds with the chat template of a tokenizer.
inline void encode_rows(const tokenizer::Tokenizer& tokenizer, std::string_view template_name, std::string_view text) {
    std::unique_ptr<data::RowEncoder> encoder;
    if (!accepts([&] { encoder = data::make_row_encoder(tokenizer, template_name); })) return;
    accepts([&] { encoder->text(text); });
    accepts([&] { encoder->prompt_completion("Why?", text); });
    accepts([&] { encoder->alpaca({"Say it.", "", std::string(text), ""}); });
    accepts([&] {
        encoder->messages(
            {{"user", "Hello"}, {"assistant", std::string(text)}, {"user", "And?"}, {"assistant", "Yes."}});
    });
}

/// The input itself serves as text: its end, where mutations do not change what is loaded.
inline std::string_view end_of(std::string_view input) {
    constexpr std::size_t longest = 512;
    return input.substr(input.size() - std::min(input.size(), longest));
}

}  // namespace unsloth::fuzz
