#include "unsloth/tokenizer/characters.h"

#include "tokenizer/jinja/text.h"
#include "tokenizer/unicode.h"

namespace unsloth::tokenizer {

std::vector<std::string_view> split_white_space(std::string_view text) {
    return jinja::text::split_white_space(text, -1);
}

std::string_view first_character(std::string_view text) {
    return text.empty() ? text : text.substr(0, unicode::decode(text, 0).size);
}

std::string_view last_character(std::string_view text) {
    return text.empty() ? text : text.substr(unicode::previous(text, text.size()));
}

bool is_letters(std::string_view text) {
    for (std::size_t at = 0; at < text.size();) {
        const unicode::Decoded d = unicode::decode(text, at);
        if (!unicode::is_word(d.code_point) || unicode::is_numeric(d.code_point) ||
            unicode::is_punctuation(d.code_point))
            return false;
        at += d.size;
    }
    return !text.empty();
}

std::string lowercase(std::string_view text) {
    return jinja::text::lower(text);
}

std::string with_capital(std::string_view text) {
    const std::string_view first = first_character(text);
    return jinja::text::capitalize(first) + std::string(text.substr(first.size()));
}

}  // namespace unsloth::tokenizer
